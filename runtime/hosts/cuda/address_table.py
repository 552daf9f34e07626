"""Where arrays lie in the GPU's memory, so that a kernel reads their addresses and MLX need not bind them.

MLX looks at each array that a launch binds several times, on the CPU. A step kernel reads every weight of a model, so
it is given a table of their addresses, which this module makes once.

An address holds as long as the array exists and stays where it is. MLX moves the buffer of an array only when the CPU
looks at it, or another card (see "What MLX does with memory on CUDA" in benchmarks/NOTES-gpu.md). So a table is for
arrays that the CPU never looks at: not for adapters, which it writes. MLX keeps what a launch binds until the launch
has ended, but not what a table names: whoever has the table keeps that.
"""

import functools
from collections.abc import Sequence
from importlib.resources import files

import mlx.core as mx

from mlxr.runtime.hosts.cuda.build import build_cubin
from mlxr.runtime.hosts.cuda.device import architecture

NAME = "mlxr_addresses"
"""The kernel that makes tables."""
AT_ONCE = 64
"""Arrays that it takes in one launch."""


def address_table(arrays: Sequence[mx.array]) -> mx.array:
    """The addresses of arrays, [arrays] u64, evaluated and in the GPU's own memory; at least one array.

    Raises:
        HostError: the kernel that writes them does not compile.
    """
    mx.eval(*arrays)  # a lazy array has no place yet
    parts = []
    for first in range(0, len(arrays), AT_ONCE):
        some = list(arrays[first : first + AT_ONCE])
        (part,) = mx.fast.precompiled_cuda_kernel(
            name=NAME,
            compiled_source=addresses_image(),
            inputs=some + some[-1:] * (AT_ONCE - len(some)),
            output_shapes=[(AT_ONCE,)],
            output_dtypes=[mx.uint64],
            scalars=[],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            ensure_row_contiguous=False,
        )
        parts.append(part)
    table = mx.concatenate(parts) if len(parts) > 1 else parts[0]
    mx.eval(table)
    return table


@functools.cache
def addresses_image() -> bytes:
    """The image of the kernel.

    Raises:
        HostError: it does not compile.
    """
    text = files("mlxr.templates").joinpath("hosts/addresses_on_cuda.cuh").read_text("utf-8")
    return build_cubin(NAME, text, architecture())
