"""MLX's matmul in recorded prompts: the norm before it, cuBLASLt's product, and what follows its sums.

What MLX's functions compute (runtime/hosts/mlx/library.py), with numbers rounded at the same places. The kernels are in
templates/hosts/beside_products_on_cuda.cuh.
"""

import functools
import struct
from importlib.resources import files

from mlxr.compiler.artifact import DType, Finish, Launch, MatmulCall, Phase
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.binding import Dims, shape_of
from mlxr.runtime.hosts.cuda.build import build_cubin
from mlxr.runtime.hosts.cuda.device import architecture
from mlxr.runtime.hosts.cuda.matrix_library import Product, multiplies
from mlxr.runtime.hosts.cuda.recorded_calls import NORMED, SUMS, WORKSPACE, Call, Operand, ProductCall
from mlxr.runtime.hosts.mlx.library import added_by_matmul, factor_of_sums, is_finished

NORM, FINISH = "mlxr_norm_", "mlxr_finish_"
"""Kernels, whose names end with the type."""
_THREADS = 256
_TYPES = (DType.BF16, DType.F16, DType.F32)
KINDS = (None, "silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu", "swiglu_oai")
"""The activations, in the order of their numbers."""


def is_recordable(call: MatmulCall) -> bool:
    """Whether there are kernels for all that a library call does: there are none for logits of many chosen rows."""
    has_one_type = all(port.dtype == call.dtype for port in call.ports)
    is_plain = call.finish.times_first is None and all(port.name != "rows" for port in call.ports)
    return is_plain and has_one_type and multiplies(call.dtype)


def product_calls(call: MatmulCall, launch: Launch, dims: Dims) -> list[Call | ProductCall]:
    """The calls of a library call.

    Raises:
        HostError: there is no kernel for something that it does.
    """
    ports = {port.name: port for port in call.ports}
    bound = dict(zip(ports, launch.inputs, strict=True))
    dtype, finish, out = call.dtype, call.finish, launch.outputs[0]
    if not is_recordable(call):
        raise HostError(f"{call.label} of {launch.op} is one that only MLX computes")
    rows, stride = shape_of(ports["x"].shape, dims)
    features, columns = shape_of(ports["weight"].shape, dims)
    calls, x = list[Call | ProductCall](), bound["x"]
    if call.norm is not None:
        numbers = (columns, stride, _bits(call.norm.eps), call.norm.kind == "layer")
        operands: list[Operand] = [x, bound.get("norm", 0), bound.get("norm_bias", 0), NORMED, *map(int, numbers), 0]
        calls.append(_kernel(NORM, dtype, rows, operands))
        x = NORMED
    product = product_of(call, dims)
    sums = out if _is_result(call) else SUMS
    beside = (bound["residual"] if product.adds else 0, bound["bias"] if product.has_bias else 0)
    calls.append(ProductCall(product, [x, bound["weight"], *beside, sums, WORKSPACE]))
    if sums != out:
        width = features // 2 if finish.gated else features
        names = ("bias", "gate", "residual", "alpha_p", "alpha_n")
        operands = [sums, *(bound.get(name, 0) for name in names), out, rows, width, *_numbers(finish)]
        vector = max(1, 16 // dtype.size_bytes)
        vector = vector if width % vector == 0 else 1
        calls.append(_kernel(FINISH, dtype, -(-rows * width // vector // _THREADS), operands))
    return calls


def product_of(call: MatmulCall, dims: Dims) -> Product:
    """The product of a library call."""
    ports, finish, dtype = {port.name: port for port in call.ports}, call.finish, call.dtype
    rows, stride = shape_of(ports["x"].shape, dims)
    features, columns = shape_of(ports["weight"].shape, dims)
    product = Product(rows, features, columns, stride if call.norm is None else columns, dtype)
    added = added_by_matmul({name: port.dtype for name, port in ports.items()}, finish, dtype)
    if added is None:
        return product
    factor = factor_of_sums(finish, added)
    return product._replace(adds=added == "residual", has_bias=added == "bias", alpha=factor)


def beside_bytes(phase: Phase, tokens: int) -> tuple[int, int]:
    """Memory for NORMED and for SUMS in steps of so many tokens."""
    normed = sums = 0
    for call in (launch.body for launch in phase.launches if isinstance(launch.body, MatmulCall)):
        features, columns = next(port.shape for port in call.ports if port.name == "weight")
        normed = max(normed, 0 if call.norm is None else call.dtype.size_bytes * int(columns))
        sums = max(sums, 0 if _is_result(call) else call.dtype.size_bytes * int(features))
    return tokens * normed, tokens * sums


@functools.cache
def products_image(dtype: DType) -> bytes:
    """The image of a type's kernels.

    Raises:
        HostError: they do not compile.
    """
    text = files("mlxr.templates").joinpath("hosts/beside_products_on_cuda.cuh").read_text("utf-8")
    others = "".join(f"#define MLXR_WITHOUT_{other.upper()}\n" for other in _TYPES if other != dtype)
    return build_cubin(f"mlxr_beside_products_{dtype}", others + text, architecture())


def _is_result(call: MatmulCall) -> bool:
    """Whether the library gives the result of a call, and nothing follows its sums."""
    types = {port.name: port.dtype for port in call.ports}
    return is_finished(types, call.finish) or added_by_matmul(types, call.finish, call.dtype) is not None


def _kernel(name: str, dtype: DType, blocks: int, operands: list[Operand]) -> Call:
    return Call(f"{name}{dtype}", products_image(dtype), (blocks, 1, 1), _THREADS, operands)


def _numbers(finish: Finish) -> list[int]:
    """What `mlxr_finish` is given of the steps after the sums."""
    bounded = (finish.limit, finish.out_cap, finish.out_limit)
    bounds = sum((number is not None) << i for i, number in enumerate(bounded))
    floats = (*(number or 0.0 for number in bounded), finish.out_scale, finish.residual_scale)
    return [KINDS.index(finish.activation), int(finish.gated), bounds, *map(_bits, floats)]


def _bits(number: float) -> int:
    """The bits of a number as f32."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return int(bits)
