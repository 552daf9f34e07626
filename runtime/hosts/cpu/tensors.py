"""Maps, converts or packs every weight for the program.

A float matrix is read in place if it has the program's type and its rows are in order; else it is converted into memory
that the host allocates. A quantised matrix must have the format that the program reads; the program's own `mlxr_pack`
packs its planes into panels, in memory, or in a file of the cache (`PanelFile`) that is then mapped. Vectors become
f32. Memory is reserved once, and several threads fill it piece by piece. Pages of the weight file are released once
they have been converted or packed.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Protocol

from mlxr.compiler.artifact import CTensor, TensorSource
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.hosts.cpu.library import Library
from mlxr.runtime.hosts.cpu.memory import aligned
from mlxr.runtime.hosts.cpu.panel_file import PanelFile
from mlxr.runtime.hosts.cpu.placing import PlacedTensors, Placing, in_place, is_of_adapters
from mlxr.runtime.memory.token_reads import resident_tensors
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import open_tensor
from mlxr.runtime.weights.tensor_rows import TensorRows
from mlxr.runtime.weights.weight_file import WeightFile

_MAX_LISTED = 8


NO_TENSORS: Mapping[CTensor, int] = MappingProxyType({})
TensorReader = Callable[[TensorSource], TensorRows]
"""Finds a tensor of the model, in a file or in memory."""


class Lender(Protocol):
    """Somebody who has tensors in memory, as the program reads them."""

    def lent(self) -> Mapping[CTensor, int]:
        """The address of each; they stay there as long as the lender exists."""


def read_from(file: WeightFile) -> TensorReader:
    """A reader of the tensors of a weight file, which it maps."""
    return partial(open_tensor, MappedWeights(file))


def place_tensors(
    tensors: Sequence[CTensor],
    library: Library,
    read: TensorReader,
    threads: int,
    progress: Callable[[int, int], None] | None = None,
    lent: Mapping[CTensor, int] = NO_TENSORS,
    file: PanelFile | None = None,
    resident: int = 0,
) -> PlacedTensors:
    """Brings every weight of a program into memory.

    Args:
        tensors: the tensors that the program reads, in its order.
        library: packs panels.
        read: finds tensors.
        threads: how many threads fill memory.
        progress: called with the bytes done so far and the total.
        lent: addresses of tensors that are in memory already, as the program reads them.
        file: where panels are kept, and mapped from; None: in memory. Where that file cannot be made, they are in
            memory, too.
        resident: bytes of panels that are in memory all the same: those that every token needs.

    Raises:
        WeightsError: a quantised tensor has another format than the program reads, a number does not fit, or a file
            cannot be read.
        HostError: there is not enough memory.
    """
    unread = [tensor in lent or is_of_adapters(tensor) for tensor in tensors]
    sources = [[] if no else [read(part) for part in tensor.parts] for no, tensor in zip(unread, tensors, strict=True)]
    _check_blocks(tensors, sources)
    placing = Placing(tensors, sources, library, threads, progress)
    for index, tensor in enumerate(tensors):
        if tensor in lent:
            placing.put(index, lent[tensor])
            placing.total -= tensor.size_bytes
    if file is not None:
        placing.map(file, resident_tensors(tensors, resident))
    placing.map_rows()
    placing.fill()
    return placing.placed


def bytes_by_place(tensors: Sequence[CTensor], read: TensorReader, resident: int | None = None) -> tuple[int, int]:
    """Bytes of the weights that `place_tensors` would allocate, and of those that it would leave where they are.

    Args:
        tensors: as there.
        read: as there.
        resident: as there, if panels are in a file; None: they are in memory.
    """
    own = mapped = 0
    kept = None if resident is None else resident_tensors(tensors, resident)
    for tensor in tensors:
        is_mapped = kept is not None and tensor.layout == "packed" and tensor not in kept
        is_read = not is_mapped and not is_of_adapters(tensor)
        if is_mapped or (is_read and in_place(tensor, [read(part) for part in tensor.parts]) is not None):
            mapped += tensor.size_bytes
        else:
            own += aligned(tensor.size_bytes)
    return own, mapped


def _check_blocks(tensors: Sequence[CTensor], sources: Sequence[Sequence[TensorRows]]) -> None:
    wrong = [
        f"{parts[0].where} is {parts[0].format}, the artifact reads {tensor.format}"
        for tensor, parts in zip(tensors, sources, strict=True)
        if parts and tensor.layout == "packed" and parts[0].format != tensor.format
    ]
    if wrong:
        more = f"; and {len(wrong) - _MAX_LISTED} more" if len(wrong) > _MAX_LISTED else ""
        raise WeightsError(
            f"{'; '.join(wrong[:_MAX_LISTED])}{more}. Quantised weights are read as they are: run the file itself "
            "(mlxr run MODEL), which compiles for its types, or give the spec the file's weight formats"
        )
