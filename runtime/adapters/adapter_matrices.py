"""An adapter's matrices as hosts take them: for each matrix of the model that it changes, in the model's order of rows.

Files of models may have several matrices in one tensor, and rows in another order; an adapter's second matrix has its
rows in the way of that file, so the recipe that finds a matrix in a file also finds its part of the adapter.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import DOWN, UP, Adapters, Recipe, TensorSource, WeightPlan
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.adapters.adapter_file import AdapterFile, LowRank
from mlxr.runtime.weights.stored_tensor import quoted

_MOST_LISTED = 4
_GREATEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class AdapterMatrices:
    """The matrices of an adapter.

    Attributes:
        matrices: by the names of weights' parts, as `Host.write_adapter` takes them; the scale is in the second ones.
        digest: of all of them: equal digests mean equal adapters.
    """

    matrices: Mapping[str, npt.NDArray[np.float32]]
    digest: str


def adapted_parts(weights: Sequence[WeightPlan]) -> list[TensorSource]:
    """The matrices of a plan that adapters may change."""
    parts = {part.name: part for weight in weights for part in weight.parts}
    return [parts[name.removesuffix(DOWN)] for name in parts if name.endswith(DOWN)]


def adapter_matrices(adapter: AdapterFile, adapted: Sequence[TensorSource], places: Adapters) -> AdapterMatrices:
    """Reads an adapter.

    Args:
        adapter: it.
        adapted: the model's matrices that adapters may change.
        places: the model's for adapters.

    Raises:
        WeightsError: it is for another model, changes what cannot be changed, has too high a rank or numbers that are
            not finite, or cannot be read.
    """
    if adapter.rank > places.rank:
        raise WeightsError(
            f"{adapter.path}: has rank {adapter.rank}, and the model was loaded for adapters of rank {places.rank}: "
            f"load it for more (--adapter-rank {-(-adapter.rank // 8) * 8})"
        )
    matrices: dict[str, npt.NDArray[np.float32]] = {}
    rows_used: dict[str, int] = dict.fromkeys(adapter.changes, 0)
    for part in adapted:
        found = _recipe(adapter, part)
        if found is None:
            continue
        name, recipe = found
        down, up = _matrices(adapter, name, part, recipe, places.rank)
        matrices[part.name + DOWN], matrices[part.name + UP] = down, up
        rows_used[name] += part.shape[0]
    _check_use(adapter, rows_used, adapted)
    digest = hashlib.sha256()
    for name in sorted(matrices):
        digest.update(name.encode() + b"\0" + matrices[name].tobytes())
    return AdapterMatrices(matrices, digest.hexdigest())


def _recipe(adapter: AdapterFile, part: TensorSource) -> tuple[str, Recipe] | None:
    """The tensor of which a part is made in files of the adapter's kind, and how, if the adapter changes it."""
    for recipe in part.gguf if adapter.kind == "gguf" else part.safetensors:
        name = recipe.tensor.removesuffix(".weight")
        if recipe.stack == 1 and name in adapter.changes:
            return name, recipe
    return None


def _matrices(
    adapter: AdapterFile, name: str, part: TensorSource, recipe: Recipe, rank: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """A part's two matrices, filled up with zeros: [rank, columns] and [rank, rows]."""
    change, (rows, columns) = adapter.changes[name], part.shape
    where = f"{adapter.path}: {quoted(name)}"
    if recipe.columns is not None or recipe.unit_rows or recipe.negative_exp or recipe.add:
        raise WeightsError(f"{where}: this model's files hold it in a way that an adapter cannot change")
    taken = rows_of(recipe, rows)
    if change.columns != columns or change.rows < taken.max() + 1 or (recipe.rows is None and change.rows != rows):
        raise WeightsError(
            f"{where}: is for a matrix of [{change.rows}, {change.columns}], and the model's ({part.name}) is "
            f"[{rows}, {columns}]: the adapter is for another model"
        )
    down, up = _numbers(adapter, change)
    wide = np.zeros((rank, columns), np.float32)
    wide[: change.rank] = down
    lift = np.zeros((rank, rows), np.float32)
    lift[: change.rank] = up[taken].T * np.float32(change.scale * recipe.times)
    if not (np.abs(wide).max() <= _GREATEST and np.abs(lift).max() <= _GREATEST):  # NaN is neither
        raise WeightsError(f"{where}: has numbers that are not finite, or too great for f16")
    return wide, lift


def _numbers(adapter: AdapterFile, change: LowRank) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    down, up = (adapter.file.read(t.name).astype(np.float32) for t in (change.down, change.up))
    return (down.T, up.T) if change.is_turned else (down, up)


def rows_of(recipe: Recipe, count: int) -> npt.NDArray[np.int64]:
    """Which rows of a file's tensor are the part's, in its order."""
    if recipe.rows is None:
        return np.arange(count)
    rows = recipe.rows
    assert prod(rows.counts) == count, f"{recipe}: {count} rows"
    digits = np.indices(rows.counts).reshape(len(rows.counts), -1)
    taken: npt.NDArray[np.int64] = rows.start + np.tensordot(np.array(rows.strides), digits, 1)
    return taken


def _check_use(adapter: AdapterFile, rows_used: Mapping[str, int], adapted: Sequence[TensorSource]) -> None:
    """Refuses an adapter that changes more than the model can have changed."""
    left = [name for name, used in rows_used.items() if used != adapter.changes[name].rows]
    if not left:
        return
    names = ", ".join(quoted(name) for name in left[:_MOST_LISTED])
    names += f" and {len(left) - _MOST_LISTED} more" if len(left) > _MOST_LISTED else ""
    roles = ", ".join(dict.fromkeys(part.name.split(".", 2)[2] for part in adapted))
    hint = "; it may be for another model" if not any(rows_used.values()) else ""
    raise WeightsError(f"{adapter.path}: changes {names}, and adapters of this model may change {roles}{hint}")
