"""cuBLASLt's matrix products, the library that MLX multiplies with, for graphs that are recorded.

Each shape is planned once: the library is asked for its best algorithms, as MLX asks it, with as much memory to work
in. MLX takes the first. That is not always a good one (448 rows of Llama-3-8B's gate and up: 267 us, the second 154),
so another takes its place that is clearly faster on this card. Plans that are not padded, as those of encoders, have
more numbers of rows than it is worth while to try: after some, the first algorithm is taken.

Source: MLX's `CublasGemm` (mlx/backend/cuda/gemms/cublas_gemm.cpp). Matrices of rows are given as transposed ones of
columns, which the library expects.
"""

import ctypes
import functools
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from mlxr.compiler.artifact import DType
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cuda.driver import call, in_context
from mlxr.runtime.hosts.cuda.mlx_stream import mlx_stream
from mlxr.runtime.hosts.cuda.product_choices import ProductChoices

WORKSPACE_BYTES = 32 << 20
"""Memory that a product may work in."""
_TYPES = {DType.F32: 0, DType.F16: 2, DType.BF16: 14}  # cudaDataType_t
_SUMS_IN_F32 = 68  # CUBLAS_COMPUTE_32F
_TRANSPOSED_FIRST, _EPILOGUE, _BIAS = 3, 7, 8  # CUBLASLT_MATMUL_DESC_*
_ADDS_BIAS = 4  # CUBLASLT_EPILOGUE_BIAS
_MOST_WORKSPACE = 1  # CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
_MOST_ALGORITHMS = 6
_RUNS, _HOPELESS = 3, 1.3
_MOST_SIZES = 100
"""Numbers of rows for which algorithms of a matrix are tried; plans that are not padded have one for each length."""
_FEWEST_LAUNCHES, _MOST_LAUNCHES, _COLD_BYTES = 2, 6, 100 << 20
_CLEARLY = 0.93
"""A time's share of the first one's that is clearly less, and no accident."""
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


class _Timer:
    """Times what a stream is given."""

    def __init__(self, stream: _pointer) -> None:
        self._stream, self._events = stream, (_pointer(), _pointer())
        for event in self._events:
            call("cuEventCreate", ctypes.byref(event), 0)

    def milliseconds(self, start: Callable[[], object]) -> float:
        """How long that takes which is given to the stream."""
        first, last = self._events
        call("cuEventRecord", first, self._stream)
        start()
        call("cuEventRecord", last, self._stream)
        call("cuEventSynchronize", last)
        found = ctypes.c_float()
        call("cuEventElapsedTime", ctypes.byref(found), first, last)
        return found.value

    def close(self) -> None:
        for event in self._events:
            call("cuEventDestroy_v2", event)


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
        self._found: dict[Product, list[_Planned]] = {}
        self._tried = Counter[Product]()  # by what is the same for all numbers of rows
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        with in_context():
            self._call("cublasLtCreate", ctypes.byref(self._handle))

    def prepare(self, launches: Sequence[ProductLaunch], stream: _pointer) -> None:
        """Plans products, in MLX's context, by running them, once MLX's stream has done all that it was given.

        What is lazy is not in the stream: nothing of it may need the memory of their results.

        Args:
            launches: of the products, in order. Some of each product are run, so that weights are read from memory.
            stream: on which they run.

        Raises:
            HostError: the library has no algorithm for one, or the driver refuses.
        """
        by_product: dict[Product, list[ProductLaunch]] = {}
        for launch in launches:
            by_product.setdefault(launch.product, []).append(launch)
        with self._lock:
            new = [product for product in by_product if product not in self._planned]
            found = {product: self._plan(product) for product in new}
            tried = [product for product in new if self._tried[product._replace(rows=0)] < _MOST_SIZES]
            places = dict.fromkeys(new, 0)
            if tried:
                places |= zip(tried, self._places(tried, found, by_product, stream), strict=True)
            self._planned |= {product: some[places[product]] for product, some in found.items()}
            self._tried.update(product._replace(rows=0) for product in tried)

    def load(
        self, products: Sequence[Product], launch_of: Callable[[Product], ProductLaunch], stream: _pointer
    ) -> None:
        """Has kernels of products loaded: those that an earlier process has chosen, else all that `prepare` will try.

        Args:
            products: that are new in one call of `prepare` to come.
            launch_of: a launch of a product, whose result is of no importance.
            stream: on which each is started once.

        Raises:
            HostError: the library has no algorithm for one.
        """
        places = ProductChoices(self._library.cublasLtGetVersion(), products).read()
        for number, product in enumerate(products):
            with self._lock:
                planned = self._plan(product)
                for one in planned if places is None else planned[places[number] :][:1]:
                    with suppress(HostError):
                        self._start(one, launch_of(product), stream)

    def multiply(self, launch: ProductLaunch, stream: _pointer) -> None:
        """Starts a product on a stream, in MLX's context. It is prepared.

        Raises:
            HostError: the library refuses.
        """
        with self._lock:
            self._start(self._planned[launch.product], launch, stream)

    def _places(
        self,
        products: Sequence[Product],
        found: Mapping[Product, Sequence[_Planned]],
        launches: Mapping[Product, Sequence[ProductLaunch]],
        stream: _pointer,
    ) -> list[int]:
        """The places of the algorithms that products take: those of an earlier process, else by running them."""
        choices, timer = ProductChoices(self._library.cublasLtGetVersion(), products), _Timer(stream)
        try:
            places = choices.read()
            if places is None or any(
                not 0 <= at < len(found[product]) for at, product in zip(places, products, strict=True)
            ):
                if (running := mlx_stream()) is not None:  # it may use the memory
                    call("cuStreamSynchronize", _pointer(running))
                places = [self._choose(found[each], launches[each], stream, timer) for each in products]
                choices.write(places)
        finally:
            timer.close()
        return places

    def _choose(
        self, planned: Sequence[_Planned], launches: Sequence[ProductLaunch], stream: _pointer, timer: _Timer
    ) -> int:
        """The place of the first algorithm, or of another one that is clearly faster."""
        product = launches[0].product
        weight_bytes = product.features * product.columns * product.dtype.size_bytes
        count = min(_MOST_LAUNCHES, max(_FEWEST_LAUNCHES, -(-_COLD_BYTES // weight_bytes)))

        def start(one: _Planned) -> None:
            for launch in launches[:count]:
                self._start(one, launch, stream)

        if len(planned) == 1:
            return 0
        first, best = planned[0], 0
        own = least = min(timer.milliseconds(partial(start, first)) for _ in range(_RUNS))
        for place, one in enumerate(planned[1:], 1):
            time = inf
            with suppress(HostError):
                for _ in range(_RUNS):
                    time = min(time, timer.milliseconds(partial(start, one)))
                    if time > _HOPELESS * least:
                        break
            best, least = (place, time) if time < min(least, _CLEARLY * own) else (best, least)
        for _ in range(_RUNS if best else 0):  # others may have used the card a moment ago
            own = min(own, timer.milliseconds(partial(start, first)))
        return best if least < _CLEARLY * own else 0

    def _start(self, planned: _Planned, launch: ProductLaunch, stream: _pointer) -> None:
        product = launch.product
        x, weight, added, bias, out, workspace = map(_pointer, launch[1:])
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

    def _plan(self, product: Product) -> list[_Planned]:
        """Some algorithms, the best first, as far as the library knows."""
        if product not in self._found:
            self._found[product] = self._ask(product)
        return self._found[product]

    def _ask(self, product: Product) -> list[_Planned]:
        described, preference, count = _pointer(), _pointer(), ctypes.c_int()
        found = (_Found * _MOST_ALGORITHMS)()
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
                *(self._handle, described, weight, x, out, out, preference, _MOST_ALGORITHMS),
                *(found, ctypes.byref(count)),
            )
        finally:
            self._library.cublasLtMatmulPreferenceDestroy(preference)
        if not count.value:
            raise HostError(f"cuda: {_NAME} has no way to multiply {product}")
        return [_Planned(described, weight, x, out, algorithm) for algorithm in found[: count.value]]

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


def matrix_library() -> MatrixLibrary:
    """The library that MLX has loaded.

    Raises:
        HostError: MLX has loaded none, or it refuses.
    """
    with _opening:
        return _open()


_opening = threading.Lock()


@functools.cache
def _open() -> MatrixLibrary:
    try:
        paths = {line.split(maxsplit=5)[-1] for line in _MAPS.read_text("utf-8").splitlines() if _NAME in line}
    except OSError:
        paths = set()
    if not paths:
        raise HostError(f"cuda: MLX has not loaded {_NAME}, so its products cannot be recorded")
    try:
        return MatrixLibrary(ctypes.CDLL(min(paths)))
    except (OSError, AttributeError) as error:  # the file is gone, or is of a version without a function
        raise HostError(f"cuda: {_NAME}, which MLX has loaded, cannot be used: {error}") from error


def multiplies(dtype: DType) -> bool:
    """Whether the library multiplies numbers of a type."""
    return dtype in _TYPES
