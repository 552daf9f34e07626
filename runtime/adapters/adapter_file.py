"""An adapter in a file: for each tensor of a model that it changes two matrices, whose product is added to it.

Invariants: opening reads headers and small files alone; nothing is taken for what it is not: whatever of an adapter
cannot be done is refused, and the message names it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mlxr.compiler.artifact import FileKind
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.stored_tensor import StoredTensor, quoted
from mlxr.runtime.weights.weight_file import WeightFile


@dataclass(frozen=True)
class LowRank:
    """What is added to a tensor [rows, columns]: scale * up @ down.

    Attributes:
        down: [rank, columns], or turned.
        up: [rows, rank], or turned.
        scale: of the product.
        is_turned: whether the file has both the other way round, as mlx-lm writes them.
    """

    down: StoredTensor
    up: StoredTensor
    scale: float
    is_turned: bool = False

    @property
    def rank(self) -> int:
        """Its rank."""
        return self.down.shape[-1 if self.is_turned else 0]

    @property
    def columns(self) -> int:
        """Columns of the tensor."""
        return self.down.shape[0 if self.is_turned else -1]

    @property
    def rows(self) -> int:
        """Rows of the tensor."""
        return self.up.shape[-1 if self.is_turned else 0]


@dataclass(frozen=True)
class AdapterFile:
    """An adapter.

    Attributes:
        path: what was named.
        kind: of the model's files by whose names it calls tensors.
        file: the matrices.
        changes: by the name of a model's tensor, without `.weight`, what is added to it.
    """

    path: Path
    kind: FileKind
    file: WeightFile = field(repr=False)
    changes: Mapping[str, LowRank] = field(repr=False)

    @property
    def rank(self) -> int:
        """Its highest rank."""
        return max(change.rank for change in self.changes.values())


def paired(
    path: Path, downs: Mapping[str, StoredTensor], ups: Mapping[str, StoredTensor], *, is_turned: bool = False
) -> dict[str, tuple[StoredTensor, StoredTensor]]:
    """The two matrices of each tensor.

    Raises:
        WeightsError: one of them is missing, is no matrix of floats, or has another rank than the other.
    """
    if not downs and not ups:
        raise WeightsError(f"{path}: holds no matrices of a LoRA adapter")
    for name in downs.keys() ^ ups.keys():
        missing = "second" if name in downs else "first"
        raise WeightsError(f"{path}: lacks the {missing} matrix of {quoted(name)}")
    for name, down in downs.items():
        up = ups[name]
        for tensor in (down, up):
            kind = tensor.element_type
            if len(tensor.shape) != 2 or not (kind.is_float and kind.is_readable) or 0 in tensor.shape:
                raise WeightsError(
                    f"{path}: {quoted(tensor.name)} is {list(tensor.shape)} {tensor.type}; expected a matrix of floats"
                )
        ranks = (down.shape[1], up.shape[0]) if is_turned else (down.shape[0], up.shape[1])
        if ranks[0] != ranks[1]:
            raise WeightsError(f"{path}: the matrices of {quoted(name)} have ranks {ranks[0]} and {ranks[1]}")
    return {name: (down, ups[name]) for name, down in downs.items()}
