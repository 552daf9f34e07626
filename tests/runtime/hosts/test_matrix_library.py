"""cuBLASLt's products, by a library that notes what it is asked."""

import ctypes
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxr.compiler.artifact import DType
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cuda import launch_graph, matrix_library
from mlxr.runtime.hosts.cuda.launch_graph import GraphLaunch, LaunchGraph
from mlxr.runtime.hosts.cuda.matrix_library import MatrixLibrary, Product, ProductLaunch
from mlxr_tests.fake_driver import FakeDriver, use_driver

made: list[MatrixLibrary] = []
PRODUCT = Product(rows=5, features=7, columns=11, stride=13, dtype=DType.BF16)


class FakeLibrary:
    """Functions that succeed.

    Attributes:
        calls: their names and arguments, in order.
        fails: names of those that fail.
        ways: how many algorithms it finds.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.fails: set[str] = set()
        self.ways = 1

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            if name.endswith("GetHeuristic"):
                arguments[-1]._obj.value = self.ways
            if name.endswith("GetVersion"):
                return 130100
            return 15 if name in self.fails else 0

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of each call of a function."""
        return [arguments for called, arguments in self.calls if called == name]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeLibrary:
    use_driver(monkeypatch)
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(mx, "device_info", lambda *_: {"device_name": "a card"})
    library = FakeLibrary()
    opened: Any = library
    made.append(MatrixLibrary(opened))
    monkeypatch.setattr(launch_graph, "matrix_library", lambda: made[-1])
    return library


def multiply(product: Product = PRODUCT, added: int = 0, bias: int = 0) -> None:
    library, launch = made[-1], ProductLaunch(product, 256, 512, added, bias, 1024, 2048)
    library.prepare([launch], ctypes.c_void_p(3))
    library.multiply(launch, ctypes.c_void_p(3))


def test_a_shape_is_planned_once(fake: FakeLibrary) -> None:
    """Rows are the library's columns: x and weight have `columns` rows there, of which the weight is turned."""
    multiply()
    multiply()
    layouts = [tuple(size.value for size in arguments[2:]) for arguments in fake.named("cublasLtMatrixLayoutCreate")]
    assert layouts == [(11, 7, 11), (11, 5, 13), (7, 5, 7)]
    assert len(fake.named("cublasLtMatmulAlgoGetHeuristic")) == 1
    first, second = fake.named("cublasLtMatmul")
    assert first[1] is second[1] and [first[i].value for i in (3, 5, 8, 10, 13)] == [512, 256, 1024, 1024, 2048]
    assert first[2]._obj.value == 1 and first[7]._obj.value == 0


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ([10, 9, 9.5], 9),
        ([10, 9.4, 12], 10),
        ([10, 9, 14], 9),
        ([267, 154, 165], 154),
        ([10, None, 4, 3.9], 3.9),
        ([10, 4, 3.9], 3.9),
    ],
)
def test_another_algorithm_that_is_clearly_faster_is_taken(
    monkeypatch: pytest.MonkeyPatch, fake: FakeLibrary, times: list[float | None], chosen: float
) -> None:
    """Of several, each of which runs some times; one that fails is not the one, and slow ones run once."""
    fake.ways = len(times)
    number, runs = dict[int, int](), list[int]()

    def multiplied(*arguments: Any) -> int:
        at = ctypes.addressof(arguments[12]._obj)
        number.setdefault(at, len(number))
        runs.append(number[at])
        return 14 if times[number[at]] is None else 0

    def elapsed(_: object, found: Any, *events: object) -> int:
        found._obj.value = times[runs[-1]]
        return 0

    monkeypatch.setattr(fake, "cublasLtMatmul", multiplied, raising=False)
    monkeypatch.setattr(FakeDriver, "cuEventElapsedTime", elapsed, raising=False)
    launches = [ProductLaunch(PRODUCT, 256, 512 * i, 0, 0, 1024, 2048) for i in range(9)]
    made[-1].prepare(launches, ctypes.c_void_p(3))
    tried = len(runs)
    made[-1].multiply(launches[0], ctypes.c_void_p(3))
    assert times[runs[-1]] == chosen
    count = {None: 1, 14: 6} | {time: 18 for time in times if time not in (None, 14)}
    assert tried == sum(count[time] for time in times) + 18 * (chosen != times[0]), "three runs of six launches"


def test_what_was_found_is_kept(monkeypatch: pytest.MonkeyPatch, fake: FakeLibrary) -> None:
    """Until the library is another one, or names fewer algorithms than it did. To try some waits for MLX's stream."""
    waits = list[int]()

    def wait(_: object, stream: ctypes.c_void_p) -> int:
        waits.append(len(fake.named("cublasLtMatmul")))
        assert stream.value == 7
        return 0

    monkeypatch.setattr(matrix_library, "mlx_stream", lambda: 7)
    monkeypatch.setattr(FakeDriver, "cuStreamSynchronize", wait, raising=False)
    fake.ways, times = 3, iter([10.0] * 3 + [4.0] * 3 + [9.0] + [10.0] * 3)

    def elapsed(_: object, found: Any, *events: object) -> int:
        found._obj.value = next(times)
        return 0

    monkeypatch.setattr(FakeDriver, "cuEventElapsedTime", elapsed, raising=False)
    multiply()
    first = fake.named("cublasLtMatmul")[-1][12]._obj
    opened: Any = fake
    made.append(MatrixLibrary(opened))
    before = len(fake.named("cublasLtMatmul"))
    multiply()
    found = fake.named("cublasLtMatmulAlgoGetHeuristic")[-1][8]
    assert len(fake.named("cublasLtMatmul")) == before + 1, "nothing was tried"
    assert waits == [0]
    assert ctypes.addressof(fake.named("cublasLtMatmul")[-1][12]._obj) == ctypes.addressof(found[1]) and first
    fake.ways = 1
    made.append(MatrixLibrary(opened))
    multiply()
    found = fake.named("cublasLtMatmulAlgoGetHeuristic")[-1][8]
    assert ctypes.addressof(fake.named("cublasLtMatmul")[-1][12]._obj) == ctypes.addressof(found[0])


def test_few_sizes_of_a_matrix_are_tried(monkeypatch: pytest.MonkeyPatch, fake: FakeLibrary, tmp_path: Path) -> None:
    """Encoders are not padded, so that each length is a size. Those of another matrix are."""
    monkeypatch.setattr(matrix_library, "_MOST_SIZES", 3)
    fake.ways = 2

    def elapsed(_: object, found: Any, *events: object) -> int:
        found._obj.value = 10.0
        return 0

    monkeypatch.setattr(FakeDriver, "cuEventElapsedTime", elapsed, raising=False)
    tried = list[bool]()
    for product in (*(PRODUCT._replace(rows=rows) for rows in (1, 2, 3, 4, 5, 1)), PRODUCT._replace(features=8)):
        before = len(fake.named("cublasLtMatmul"))
        multiply(product)
        tried.append(len(fake.named("cublasLtMatmul")) > before + 1)
    assert tried == [True, True, True, False, False, False, True]
    assert len([*tmp_path.glob("cuda/*.products")]) == 4, "what is not tried is not kept"


def test_what_is_added(fake: FakeLibrary) -> None:
    multiply(PRODUCT._replace(adds=True, alpha=0.5), added=4096)
    multiply(PRODUCT._replace(has_bias=True), bias=8192)
    first, second = fake.named("cublasLtMatmul")
    assert (first[8].value, first[2]._obj.value, first[7]._obj.value) == (4096, 0.5, 1)
    assert (second[8].value, second[7]._obj.value) == (1024, 0)
    biases = [arguments for arguments in fake.named("cublasLtMatmulDescSetAttribute") if arguments[1] == 8]
    assert [(arguments[0], arguments[2]._obj.value) for arguments in biases] == [(second[1], 8192)]


@pytest.mark.parametrize("fails", ["cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic", ""])
def test_what_fails_is_told(fake: FakeLibrary, fails: str) -> None:
    fake.fails, fake.ways = {fails}, int(bool(fails))
    with pytest.raises(HostError, match=f"{fails} fails with status 15" if fails else "no way to multiply Product"):
        multiply()


def test_where_mlx_has_loaded_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text("7f0000-7f1000 r-xp 0 08:01 1 /lib/libc.so.6\n", "utf-8")
    monkeypatch.setattr(matrix_library, "_MAPS", maps)
    with pytest.raises(HostError, match=r"MLX has not loaded libcublasLt\.so"):
        matrix_library._open.__wrapped__()


def test_a_library_that_cannot_be_opened_again_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its path may have spaces. Prompts are not recorded then; an OSError would end the step."""
    maps = tmp_path / "maps"
    maps.write_text("7f0000-7f1000 r-xp 00000000 08:01 1          /own files/libcublasLt.so.13\n", "utf-8")
    monkeypatch.setattr(matrix_library, "_MAPS", maps)
    with pytest.raises(HostError, match=r"cannot be used: /own files/libcublasLt\.so\.13"):
        matrix_library._open.__wrapped__()


@pytest.mark.parametrize("fails", [False, True])
def test_products_are_captured_with_the_kernels_between_them(
    monkeypatch: pytest.MonkeyPatch, fake: FakeLibrary, fails: bool
) -> None:
    """On a stream of its own, which is gone afterwards in any case."""
    called = list[str]()

    def function(name: str) -> Any:
        def call(*_: object) -> int:
            called.append(name)
            return 0

        return call

    monkeypatch.setattr(FakeDriver, "__getattr__", lambda _, name: function(name))
    fake.fails = {"cublasLtMatmul"} if fails else set()
    launches: list[GraphLaunch | ProductLaunch] = [
        GraphLaunch(1, (1, 1, 1), 32, [8]),
        ProductLaunch(PRODUCT, 256, 512, 0, 0, 1024, 2048),
        GraphLaunch(2, (1, 1, 1), 32, [8]),
    ]
    if fails:
        with pytest.raises(HostError, match="cublasLtMatmul fails"):
            LaunchGraph(launches, [])
    else:
        LaunchGraph(launches, [])
    made = ("cuStreamCreate", "cuStreamBeginCapture_v2", "cuLaunchKernel", "cuStreamEndCapture", "cuStreamDestroy_v2")
    captured = [name for name in called if name in (*made, "cuGraphInstantiateWithFlags", "cuGraphCreate")]
    ends = [*made[3:], *([] if fails else ["cuGraphInstantiateWithFlags"])]
    assert captured == [*made[:3], *([] if fails else made[2:3]), *ends]
