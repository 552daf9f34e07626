"""Makes an importance matrix: runs a model over a text, and adds up the squares of what its matrices are multiplied by.

Host `reference` runs the source graph, and tells what each of its ops reads.
"""

from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.bench.text_windows import Window
from mlxr.compiler.artifact import Op
from mlxr.compiler.errors import WeightsError
from mlxr.compiler.ir.ops.experts import ExpertLinear
from mlxr.compiler.ir.ops.linear import Linear
from mlxr.compiler.targets.source_graph import source_weights
from mlxr.quantise.block_quantiser import Floats
from mlxr.runtime.engine.model import Model
from mlxr.runtime.hosts.reference.host import ReferenceHost

Sums = Mapping[str, tuple[Floats, Sequence[int]]]
"""By names of GGUF's: sums of squares, [matrices, columns], and of how many tokens each."""


def collect_importance(
    model: Model, windows: Sequence[Window], progress: Callable[[int, int], None] | None = None
) -> Sums:
    """Reads windows of a text.

    Args:
        model: on host reference.
        windows: of the text.
        progress: called with the windows done, and all windows.

    Raises:
        WeightsError: an input is infinite or none (NaN).
    """
    host = model.host
    assert isinstance(host, ReferenceHost), "this host alone tells what ops read"
    collector = _Collector()
    host.observe = collector
    try:
        for done, window in enumerate(windows, 1):
            for _ in model.logit_chunks(window.tokens):
                pass
            if progress is not None:
                progress(done, len(windows))
    finally:
        host.observe = None
    return collector.by_file_names(model)


class _Collector:
    """Adds up squares, by canonical names of weights."""

    def __init__(self) -> None:
        self._squares: dict[str, npt.NDArray[np.float64]] = {}
        self._counts: dict[str, npt.NDArray[np.int64]] = {}

    def __call__(self, op: Op, ports: Mapping[str, mx.array]) -> None:
        """See `Observer`."""
        if not isinstance(op.attrs, Linear | ExpertLinear) or "weight" not in op.inputs:
            return
        name, columns = op.inputs["weight"], ports["weight"].shape[-1]
        x = np.array(ports["x"].astype(mx.float32))
        if isinstance(op.attrs, Linear):
            self._add(name, 1, 0, x)
            return
        chosen = np.array(ports["experts"])
        rows = np.broadcast_to(x.reshape(len(x), -1, columns), (*chosen.shape, columns))
        for expert in np.unique(chosen[chosen >= 0]):
            self._add(name, op.attrs.num_experts, int(expert), rows[chosen == expert])

    def _add(self, name: str, matrices: int, index: int, x: Floats) -> None:
        if name not in self._squares:
            self._squares[name] = np.zeros((matrices, x.shape[-1]))
            self._counts[name] = np.zeros(matrices, np.int64)
        self._squares[name][index] += np.square(x, dtype=np.float64).sum(axis=0)
        self._counts[name][index] += len(x)

    def by_file_names(self, model: Model) -> Sums:
        """What was added up, of the tensors of layers, by the names that GGUF files have for them."""
        found: dict[str, tuple[Floats, Sequence[int]]] = {}
        for weight in source_weights(model.artifact.spec).weights:
            for part in weight.parts:
                if part.name not in self._squares or not part.gguf:
                    continue
                name, sums = part.gguf[0].tensor, self._squares[part.name]
                if not np.isfinite(sums).all():
                    raise WeightsError(f"{part.name}: its inputs are not all finite")
                if name.startswith("blk."):
                    found[name] = sums.astype(np.float32), [int(count) for count in self._counts[part.name]]
        return found
