"""Chooses whether packed weights are mapped from a file, and which of them are in memory all the same.

A model whose packed weights do not fit into memory is mapped, and so is one that takes long to pack.
"""

import shutil

from mlxr.compiler.artifact import Artifact, size
from mlxr.compiler.errors import HostError, MlxrError
from mlxr.runtime.cache_folder import PACKED_FOLDER, cache_folder
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.machine.threads import num_threads
from mlxr.runtime.memory.fitting_arena import SHARE, Footprint
from mlxr.runtime.memory.free_memory import FreeMemory
from mlxr.runtime.memory.mmap_choice import Mmap
from mlxr.runtime.memory.read_rates import read_rates
from mlxr.runtime.memory.token_reads import TokenReads
from mlxr.runtime.weights.weight_file import WeightFile

_PACK_RATE = 0.7e9
"""Bytes that a thread packs in a second, measured on a core of an EPYC 9005 (benchmarks/RESULTS.md)."""
_MOST_PACK_SECONDS = 5.0
"""Packing that takes longer is done once, and kept. To write the file takes about as long again, once, and steps of
mapped weights are some 2 % slower, because not all of their pages are large."""
_DISK_SHARE = 0.25
"""Most of what a disk has free that is taken for a model that would fit into memory."""


def maps_weights(
    host: type[Host], artifact: Artifact, file: WeightFile, mmap: Mmap, *, fits: bool, threads: int | None
) -> bool:
    """Whether packed weights are mapped from a file of the cache.

    Args:
        host: it.
        artifact: the compiled model.
        file: its weights.
        mmap: what the user wants.
        fits: whether the model fits into memory.
        threads: as for `choose_arena`.

    Raises:
        HostError: they must be mapped, and the host packs none.
    """
    if not host.packs_weights:
        if mmap == "on":
            raise HostError(f"host {host.name} packs no weights that could be mapped: leave the option out (mmap)")
        return False
    if mmap != "auto":
        return mmap == "on"
    return not fits or host.has_packed(artifact, file) or _takes_long(artifact, num_threads(threads))


def resident_bytes(artifact: Artifact, target: str, footprint: Footprint, left: int) -> int:
    """Bytes of packed weights that are in memory although there is a file of them: 0 if the system can keep them all.

    Args:
        artifact: the compiled model.
        target: of the host.
        footprint: of the model, if all are mapped.
        left: bytes that are free for its mapped weights.
    """
    library = artifact.plan.programs[target].library
    if library is None or footprint.mapped_bytes <= left:
        return 0
    return max(0, min(TokenReads.of(library.tensors).always, int(SHARE * left)))


def speed_line(
    artifact: Artifact, target: str, footprint: Footprint, free: FreeMemory, left: int, threads: int | None
) -> str | None:
    """How fast a model larger than memory is, for people: `30B-A3B, 17 GiB on 12 GiB: 3.1 tok/s predicted: ...`.

    Args:
        artifact: the compiled model.
        target: of the host.
        footprint: of the model.
        free: what is free.
        left: bytes that are free for its mapped weights.
        threads: as for `choose_arena`.

    Returns:
        None: it is not larger.
    """
    library = artifact.plan.programs[target].library
    if library is None or footprint.mapped_bytes <= left:
        return None
    reads, left = TokenReads.of(library.tensors), max(0, left)
    packed = sum(tensor.size_bytes for tensor in library.tensors if tensor.layout == "packed")
    resident = max(0, packed - footprint.mapped_bytes)
    total = footprint.weights_bytes + footprint.mapped_bytes
    what = f"{artifact.spec.name}, {size(total)} on {size(free.free_bytes)}"
    fit = f"{min(1, (resident + left) / max(1, packed)):.0%} of the weights fit"
    try:
        rates = read_rates(cache_folder(PACKED_FOLDER), num_threads(threads))
    except MlxrError:
        rates = None
    if rates is None:
        return f"{what}: {fit}, the others are read from the disk again and again"
    missing = reads.missing(resident, left)
    speed = 1 / reads.seconds(missing, rates.disk, rates.memory)
    return (
        f"{what}: {speed:.{1 if speed < 10 else 0}f} tok/s predicted: {fit}, a token reads {size(int(missing))} from "
        f"the disk, which gives {size(int(rates.disk))}/s (measured)"
    )


def _takes_long(artifact: Artifact, threads: int) -> bool:
    """Whether a model that fits takes long to pack, and the disk has much room for the file."""
    packed = sum(
        tensor.size_bytes
        for program in artifact.plan.programs.values()
        if program.library is not None
        for tensor in program.library.tensors
        if tensor.layout == "packed"
    )
    if packed < _MOST_PACK_SECONDS * _PACK_RATE * threads:
        return False
    try:
        folder = cache_folder(PACKED_FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        return packed <= _DISK_SHARE * shutil.disk_usage(folder).free
    except (OSError, MlxrError):
        return False
