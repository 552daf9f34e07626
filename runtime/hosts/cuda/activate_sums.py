"""What a projection with an activation makes of the sums of MLX's matmul, by a kernel of our own.

MLX would fuse the same ops, too, and compile them when it first meets them, for 4 to 7 s on one core. The kernel is in
templates/hosts/beside_products_on_cuda.cuh.
"""

import mlx.core as mx

from mlxr.compiler.artifact import DType, Finish
from mlxr.runtime.hosts.cuda.recorded_products import KINDS, products_image

ACTIVATE = "mlxr_activate_"
"""The kernels' names, before the type."""
_TYPES = {mx.bfloat16: (DType.BF16, 8), mx.float16: (DType.F16, 8), mx.float32: (DType.F32, 4)}
"""The type, which ends a kernel's name, and the results of a thread."""
_THREADS = 256


def activated(sums: mx.array, finish: Finish) -> mx.array | None:
    """The activated sums, [rows, columns], lazy; None: there is no kernel for that.

    Args:
        sums: [rows, columns], or [rows, 2 * columns] with those of the gates first; the result has their type.
        finish: of which nothing but the activation, a gate and a limit is computed.
    """
    if finish.activation not in KINDS or sums.dtype not in _TYPES:
        return None
    (name, vector), (rows, width) = _TYPES[sums.dtype], sums.shape
    columns = width // 2 if finish.gated else width
    has_limit = finish.limit is not None
    numbers = [rows, columns, KINDS.index(finish.activation), int(finish.gated), int(has_limit), finish.limit or 0.0]
    count = rows * columns // (vector if columns % vector == 0 else 1)
    (out,) = mx.fast.precompiled_cuda_kernel(
        name=f"{ACTIVATE}{name}",
        compiled_source=products_image(name),
        inputs=[sums],
        output_shapes=[(rows, columns)],
        output_dtypes=[sums.dtype],
        scalars=[*numbers[:-1], float(numbers[-1])],
        grid=(-(-count // _THREADS) * _THREADS, 1, 1),
        threadgroup=(_THREADS, 1, 1),
        ensure_row_contiguous=False,
    )
    return out
