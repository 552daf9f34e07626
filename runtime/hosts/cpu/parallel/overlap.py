"""The fewest tokens for which a step is run as two batches: one computes while a sum of the other is under way.

Each batch reads all weights, so that this pays only where the network is slow against the memory.
"""

import time
from collections.abc import Callable

import numpy as np

from mlxr.compiler.artifact import Program
from mlxr.runtime.hosts.cpu.parallel.program_links import PROBE_BYTES
from mlxr.runtime.hosts.exchange import EXACT_IDS, BlockingExchange, Floats

AllSum = Callable[[Floats, Floats], None]
_MEMORY_BYTES_PER_S = 1e10
_COPY_S_PER_BYTE = 0.4e-9
"""Of a sum over sockets, what the CPU does, which cannot be beside its compute."""
_AT_LEAST = 3.0
"""Times that what is sent must take what reading the weights once more does: about half of it is hidden."""
_PROBES = 3
_PROBE_FLOATS = PROBE_BYTES // 8  # what a rank receives of a sum is rounded up
_NEVER = EXACT_IDS - 1


def fewest_tokens(all_sum: AllSum, others: BlockingExchange, program: Program) -> int:
    """Measures the network. All processes of a stage call it at the same time, and get the same number.

    Args:
        all_sum: over sockets, of arrays of the same size.
        others: of the stage.
        program: of this process.
    """
    x = np.zeros(_PROBE_FLOATS, np.float32)
    seconds = _seconds(all_sum, x)
    own = tokens_to_overlap(seconds / x.nbytes, _sum_bytes(program), program.memory.weights_bytes)
    told = np.zeros(others.size, np.float32)
    told[others.index] = own
    of_all = np.empty_like(told)
    all_sum(told, of_all)
    return int(of_all.max())


def tokens_to_overlap(seconds_per_byte: float, bytes_per_token: int, weights_bytes: int) -> int:
    """The same for one rank, which reads its weights twice in a step of two batches.

    Args:
        seconds_per_byte: of the rows of a sum.
        bytes_per_token: of the rows of all sums of a step, for each token.
        weights_bytes: of this rank.
    """
    again = weights_bytes / _MEMORY_BYTES_PER_S
    per_token = (seconds_per_byte - _COPY_S_PER_BYTE) * bytes_per_token
    return min(int(_AT_LEAST * again / per_token) + 1, _NEVER) if per_token > 0 else _NEVER


def _seconds(all_sum: AllSum, x: Floats) -> float:
    """Of a sum: the least of a few, after one for which the ranks wait for each other."""
    out, times = np.empty_like(x), []
    for _ in range(1 + _PROBES):
        start = time.perf_counter()
        all_sum(x, out)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _sum_bytes(program: Program) -> int:
    """Of the rows of all sums of a prefill step, for each token."""
    phase = program.phase("prefill")
    widths = {buffer.name: buffer.shape[-1] for buffer in phase.buffers}
    labels = {kernel.name: kernel.label for kernel in program.kernels}
    sums = [launch.outputs[0] for launch in phase.launches if labels[launch.kernel] == "all_sum"]
    return sum(4 * width for name in sums if isinstance(width := widths.get(name), int))
