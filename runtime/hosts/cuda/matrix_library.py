"""cuBLASLt's matrix products, the library that MLX multiplies with, for graphs that are recorded.

Each shape is planned once: the library is asked which of its algorithms is the best, as MLX asks it, with as much
memory to work in.

Source: MLX's `CublasGemm` (mlx/backend/cuda/gemms/cublas_gemm.cpp). Matrices of rows are given as transposed ones of
columns, which the library expects.
"""

import ctypes
import functools
import threading
from pathlib import Path
from typing import Any, NamedTuple

from mlxr.compiler.artifact import DType
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cuda.driver import in_context

WORKSPACE_BYTES = 32 << 20
"""Memory that a product may work in."""
_TYPES = {DType.F32: 0, DType.F16: 2, DType.BF16: 14}  # cudaDataType_t
_SUMS_IN_F32 = 68  # CUBLAS_COMPUTE_32F
_TRANSPOSED_FIRST, _EPILOGUE, _BIAS = 3, 7, 8  # CUBLASLT_MATMUL_DESC_*
_ADDS_BIAS = 4  # CUBLASLT_EPILOGUE_BIAS
_MOST_WORKSPACE = 1  # CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
_MAPS, _NAME = Path("/proc/self/maps"), "libcublasLt.so"

_pointer = ctypes.c_void_p


class Product(NamedTuple):
    """out [rows, features] = alpha * x [rows, columns] @ weight [features, columns].T, and what is added to it.

    Attributes:
        stride: numbers from one row of x to the next.
        dtype: of all.
        adds: whether a matrix like the result is added.
        has_bias: whether a row [features] is added to each row.
    """

    rows: int
    features: int
    columns: int
    stride: int
    dtype: DType
    adds: bool = False
    has_bias: bool = False
    alpha: float = 1.0


class ProductLaunch(NamedTuple):
    """A product of a graph, with the addresses of its operands; 0: nothing is added, and there is no bias."""

    product: Product
    x: int
    weight: int
    added: int
    bias: int
    out: int
    workspace: int


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class _Planned(NamedTuple):
    """What a call of the library needs, other than addresses."""

    described: _pointer
    weight: _pointer
    x: _pointer
    out: _pointer
    algorithm: _Found


class MatrixLibrary:
    """The library, opened once for the process. Its plans stay as long.

    Mutable state: plans of products, which a lock guards.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        """Makes its handle in MLX's context.

        Raises:
            HostError: the library refuses.
        """
        self._library, self._handle, self._lock = library, _pointer(), threading.Lock()
        self._planned: dict[Product, _Planned] = {}
        with in_context():
            self._call("cublasLtCreate", ctypes.byref(self._handle))

    def multiply(self, launch: ProductLaunch, stream: _pointer) -> None:
        """Starts a product on a stream, in MLX's context; it is planned, if it was not.

        Raises:
            HostError: the library refuses, or has no algorithm for it.
        """
        product = launch.product
        x, weight, added, bias, out, workspace = map(_pointer, launch[1:])
        with self._lock:
            if product not in self._planned:
                self._planned[product] = self._plan(product)
            planned = self._planned[product]
            if product.has_bias:
                self._set("cublasLtMatmulDescSetAttribute", planned.described, _BIAS, bias)
            self._call(
                "cublasLtMatmul",
                self._handle,
                planned.described,
                ctypes.byref(ctypes.c_float(product.alpha)),
                *(weight, planned.weight, x, planned.x),
                ctypes.byref(ctypes.c_float(product.adds)),
                *(added if product.adds else out, planned.out, out, planned.out),
                ctypes.byref(planned.algorithm.algorithm),
                workspace,
                ctypes.c_size_t(WORKSPACE_BYTES),
                stream,
            )

    def _plan(self, product: Product) -> _Planned:
        described, preference, found, count = _pointer(), _pointer(), _Found(), ctypes.c_int()
        self._call("cublasLtMatmulDescCreate", ctypes.byref(described), _SUMS_IN_F32, _TYPES[DType.F32])
        attribute = "cublasLtMatmulDescSetAttribute"
        self._set(attribute, described, _TRANSPOSED_FIRST, ctypes.c_int32(1))
        if product.has_bias:
            self._set(attribute, described, _EPILOGUE, ctypes.c_int32(_ADDS_BIAS))
        weight = self._layout(product.dtype, product.columns, product.features, product.columns)
        x = self._layout(product.dtype, product.columns, product.rows, product.stride)
        out = self._layout(product.dtype, product.features, product.rows, product.features)
        self._call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        try:
            most = ctypes.c_uint64(WORKSPACE_BYTES)
            self._set("cublasLtMatmulPreferenceSetAttribute", preference, _MOST_WORKSPACE, most)
            self._call(
                "cublasLtMatmulAlgoGetHeuristic",
                *(self._handle, described, weight, x, out, out, preference, 1),
                *(ctypes.byref(found), ctypes.byref(count)),
            )
        finally:
            self._library.cublasLtMatmulPreferenceDestroy(preference)
        if not count.value:
            raise HostError(f"cuda: {_NAME} has no way to multiply {product}")
        return _Planned(described, weight, x, out, found)

    def _layout(self, dtype: DType, rows: int, columns: int, stride: int) -> _pointer:
        layout = _pointer()
        sizes = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(stride))
        self._call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), _TYPES[dtype], *sizes)
        return layout

    def _set(self, function: str, of: _pointer, attribute: int, value: Any) -> None:
        self._call(function, of, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))

    def _call(self, name: str, *arguments: object) -> None:
        if status := getattr(self._library, name)(*arguments):
            raise HostError(f"cuda: {_NAME}'s {name} fails with status {status}")


@functools.cache
def matrix_library() -> MatrixLibrary:
    """The library that MLX has loaded.

    Raises:
        HostError: MLX has loaded none, or it refuses.
    """
    try:
        paths = {line.split()[-1] for line in _MAPS.read_text("utf-8").splitlines() if _NAME in line}
    except OSError:
        paths = set()
    if not paths:
        raise HostError(f"cuda: MLX has not loaded {_NAME}, so its products cannot be recorded")
    return MatrixLibrary(ctypes.CDLL(min(paths)))


def multiplies(dtype: DType) -> bool:
    """Whether the library multiplies numbers of a type."""
    return dtype in _TYPES
