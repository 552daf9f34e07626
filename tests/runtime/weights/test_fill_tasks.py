"""Tasks that fill memory: the same bytes as a conversion's, the errors of one thread, and none that is left running."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import Recipe, TensorSource
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.weights import open_weights
from mlxr.runtime.weights.element_types import STORAGE, encode
from mlxr.runtime.weights.fill_tasks import number_tasks, run_tasks, tasks_of
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import open_tensor
from mlxr.runtime.weights.tensor_rows import TensorRows

TYPES = ("f32", "f16", "bf16")


def stored(tmp_path: Path, dtype: str, bits: np.ndarray, add: float = 0.0) -> TensorRows:
    """A tensor of these bits in a file."""
    array = mx.array(bits).view(MLX_DTYPES[dtype])
    mx.save_safetensors(str(tmp_path / "x.safetensors"), {"a": array})
    source = TensorSource("a", bits.shape, (Recipe("a", add=add),), ())
    return open_tensor(MappedWeights(open_weights(tmp_path / "x.safetensors")), source)


def written(tensor: TensorRows, dtype: str, rows_per_task: int) -> np.ndarray:
    target = np.full((tensor.num_rows, tensor.columns), 0xEE, STORAGE[dtype])
    with ThreadPoolExecutor(3) as pool:
        told: list[int] = []
        run_tasks(pool, list(number_tasks(tensor, target, dtype, rows_per_task)), told.append)
    assert sum(told) == target.nbytes
    return target


@pytest.mark.parametrize("shape", [(7, 5), (7,), (1,)])
@pytest.mark.parametrize("wanted", TYPES)
@pytest.mark.parametrize("held", TYPES)
def test_bytes_are_those_of_a_conversion(tmp_path: Path, held: str, wanted: str, shape: tuple[int, ...]) -> None:
    """Ordinary numbers, zeros of both signs, and those near none, whether they are copied or converted."""
    numbers = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    numbers.reshape(-1)[:3] = [0.0, -0.0, 6e-8][: numbers.size]
    tensor = stored(tmp_path, held, encode(numbers, held).view(f"u{STORAGE[held].itemsize}"))
    expected = encode(tensor.numbers(0, shape[0]), wanted)
    assert written(tensor, wanted, 2).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("dtype", "special"),
    [
        ("f16", [0x7C00, 0xFC00, 0x0001, 0x7BFF]),
        ("bf16", [0x7F80, 0xFF80, 0x0001, 0x7F7F]),
        ("f32", [0x7F800000, 0xFF800000, 1, 0x7F7FFFFF]),
    ],
)
def test_what_is_of_the_type_keeps_its_bits(tmp_path: Path, dtype: str, special: list[int]) -> None:
    """Infinities and the least and largest numbers as a conversion; payloads of signalling NaNs too, which it loses."""
    nan = {"f16": 0x7C01, "bf16": 0x7F81, "f32": 0x7F800001}[dtype]
    bits = np.array([[*special, nan]], f"u{STORAGE[dtype].itemsize}")
    tensor = stored(tmp_path, dtype, bits)
    assert written(tensor, dtype, 1).tobytes() == bits.tobytes()
    converted = encode(tensor.numbers(0, 1), dtype).view(bits.dtype)
    assert converted[:, :-1].tolist() == bits[:, :-1].tolist()
    if dtype == "bf16":
        assert converted[0, -1] == nan | 0x40


def test_what_a_recipe_adds_to_is_converted(tmp_path: Path) -> None:
    tensor = stored(tmp_path, "f32", np.array([1.0, -3.0], np.float32).view(np.uint32), add=1.0)
    assert written(tensor, "f32", 1).tolist() == [[2.0], [-2.0]]


def test_tasks_cover_all_rows_once() -> None:
    found: list[tuple[int, int]] = []
    for task in tasks_of(lambda first, last: found.append((first, last)) or 0, 7, 3):
        task()
    assert found == [(0, 3), (3, 6), (6, 7)]


def test_the_error_is_that_of_the_first_task_in_order() -> None:
    """The fourth task fails at once, the second one later: one thread would have met the second."""
    begun, running = [], threading.Semaphore(0)

    def task(index: int) -> int:
        begun.append(index)
        if index == 1:
            running.release()
            time.sleep(0.05)
        if index == 3:
            running.acquire()
        if index in (1, 3):
            raise ValueError(f"task {index}")
        time.sleep(0.002)
        return 1

    with ThreadPoolExecutor(2) as pool, pytest.raises(ValueError, match="task 1"):
        run_tasks(pool, [lambda i=i: task(i) for i in range(100)], lambda _: None)
    assert len(begun) < 100, "what had not begun is dropped"


def test_no_task_runs_after_a_thread_could_not_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool has queued the task for which it wanted the thread."""
    start, begun, ended = threading.Thread.start, [], []

    def start_one(thread: threading.Thread) -> None:
        if begun:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    def task() -> int:
        time.sleep(0.05)
        ended.append(1)
        return 1

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with ThreadPoolExecutor(4) as pool:
        with pytest.raises(WeightsError, match=r"starts no thread .*can't start new thread.*; end other processes"):
            run_tasks(pool, [task] * 8, lambda _: None)
        done = len(ended)
        time.sleep(0.2)
        assert len(ended) == done, "none runs any more"


@pytest.mark.parametrize("who", ["task", "tell", "interruption"])
def test_nothing_runs_after_an_error(who: str) -> None:
    running = 0
    lock = threading.Lock()

    def task(index: int) -> int:
        nonlocal running
        with lock:
            running += 1
        time.sleep(0.01)
        with lock:
            running -= 1
        if who == "task" and index == 5:
            raise RuntimeError("5 of task")
        return index

    def tell(index: int) -> None:
        if who == "tell" and index == 5:
            raise RuntimeError("5 of tell")
        if who == "interruption" and index == 5:
            raise KeyboardInterrupt("5 of interruption")

    with ThreadPoolExecutor(4) as pool:
        with pytest.raises((RuntimeError, KeyboardInterrupt), match=f"5 of {who}"):
            run_tasks(pool, [lambda i=i: task(i) for i in range(200)], tell)
        assert running == 0
        time.sleep(0.05)
        assert running == 0


def test_it_is_told_in_the_callers_thread() -> None:
    told: list[tuple[int, int]] = []
    with ThreadPoolExecutor(4) as pool:
        run_tasks(pool, [lambda: 1] * 50, lambda count: told.append((count, threading.get_ident())))
    assert told == [(1, threading.get_ident())] * 50
