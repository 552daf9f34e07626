"""What cuBLASLt and the kernels beside it do, at addresses of this process's memory."""

import ctypes
from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import DType
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.hosts.cuda.matrix_library import ProductLaunch
from mlxr.runtime.hosts.cuda.recorded_products import NORM
from mlxr.runtime.hosts.mlx_ops.activations import activate, activate_gated, xielu

F32 = npt.NDArray[np.float32]
_KINDS = (None, "silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu", "swiglu_oai")


def multiply(launch: ProductLaunch) -> None:
    """A product of the library."""
    product, dtype = launch.product, launch.product.dtype
    rows, features, columns = product.rows, product.features, product.columns
    x = _read(launch.x, (rows - 1) * product.stride + columns, dtype)
    x = np.stack([x[i * product.stride :][:columns] for i in range(rows)])
    sums = product.alpha * (x @ _read(launch.weight, features * columns, dtype).reshape(features, columns).T)
    if product.adds:
        sums = sums + _read(launch.added, rows * features, dtype).reshape(rows, features)
    if product.has_bias:
        sums = sums + _read(launch.bias, features, dtype)
    assert bool(launch.added) == product.adds and bool(launch.bias) == product.has_bias and launch.workspace
    _write(launch.out, sums, dtype)


def beside(name: str, blocks: int, arguments: Sequence[int]) -> None:
    """A kernel of beside_products_on_cuda.cuh."""
    dtype = DType(name.rpartition("_")[2])
    if name.startswith(NORM):
        x, weight, bias, out, columns, stride, epsilon, is_layer, counter = arguments
        assert not counter, "no product here counts"
        numbers = _read(x, (blocks - 1) * stride + columns, dtype)
        rows = np.stack([numbers[i * stride :][:columns] for i in range(blocks)])
        rows = rows - rows.mean(1, keepdims=True) if is_layer else rows
        rows = rows / np.sqrt((rows**2).mean(1, keepdims=True) + _number(epsilon))
        rows = rows * _read(weight, columns, dtype) if weight else rows
        _write(out, rows + _read(bias, columns, dtype) if bias else rows, dtype)
        return
    sums, bias, gate, residual, alpha_p, alpha_n, out, count, columns, kind, is_gated, bounds = arguments[:12]
    limit, out_cap, out_limit, out_scale, residual_scale = map(_number, arguments[12:])
    width = columns * (1 + is_gated)
    y = _read(sums, count * width, dtype).reshape(count, width)
    y = mx.array(y + _read(bias, width, dtype) if bias else y)
    name_of = _KINDS[kind]
    if is_gated:
        y = activate_gated(*mx.split(y, 2, axis=-1), str(name_of), limit if bounds & 1 else None)
    elif name_of == "xielu":
        y = xielu(y, *(mx.array(_read(alpha, 1, dtype)) for alpha in (alpha_p, alpha_n)))
    elif name_of is not None:
        y = activate(y, name_of)
    found = np.array(y) * out_scale
    found = out_cap * np.tanh(found / out_cap) if bounds & 2 else found
    found = np.clip(found, -out_limit, out_limit) if bounds & 4 else found
    if gate:
        found = found / (1 + np.exp(-_read(gate, count, dtype)[:, None]))
    if residual:
        found = _read(residual, count * columns, dtype).reshape(count, columns) + residual_scale * found
    assert blocks == -(
        -count * columns // (256 * (16 // dtype.size_bytes if columns % (16 // dtype.size_bytes) == 0 else 1))
    )
    _write(out, found, dtype)


def _read(address: int, count: int, dtype: DType) -> F32:
    size = dtype.size_bytes
    bits = (ctypes.c_uint8 * (count * size)).from_address(address)
    unsigned = np.frombuffer(bits, {2: np.uint16, 4: np.uint32}[size])
    return np.array(mx.array(unsigned).view(MLX_DTYPES[str(dtype)]).astype(mx.float32))


def _write(address: int, numbers: npt.NDArray[np.floating], dtype: DType) -> None:
    rounded = mx.array(numbers.astype(np.float32)).astype(MLX_DTYPES[str(dtype)])
    bits = np.array(mx.contiguous(rounded).view(mx.uint8))
    ctypes.memmove(address, bits.ctypes.data, bits.nbytes)


def _number(bits: int) -> float:
    return float(np.array(bits, np.uint32).view(np.float32))
