"""Fills memory with the rows of a tensor, in tasks that several threads share.

Invariants: the tasks of a list write to memory that does not overlap; when `run_tasks` returns or raises, no task is
running any more, so the memory may belong to somebody else.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.element_types import encode
from mlxr.runtime.weights.tensor_rows import TensorRows

Task = Callable[[], int]
"""Fills a piece of memory, and returns its bytes."""


def number_tasks(tensor: TensorRows, target: npt.NDArray[Any], dtype: str, rows_per_task: int) -> Iterator[Task]:
    """Tasks that write a tensor's numbers.

    Bytes that already have the type are copied, so that NaNs keep their payloads, which a conversion might change.

    Args:
        tensor: the tensor to write.
        target: [rows, elements of a row] in the carrier of the type, row-major.
        dtype: f32, f16 or bf16.
        rows_per_task: most rows of a task. A vector is one task, because the blocks of a quantised one span its rows.

    Raises:
        WeightsError: (a task) a number does not fit into the type, or the file cannot be read.
    """
    most = len(target) if target.shape[1] == 1 else rows_per_task
    return tasks_of(partial(_write_numbers, tensor, target, dtype), len(target), most)


def tasks_of(work: Callable[[int, int], int], rows: int, rows_per_task: int) -> Iterator[Task]:
    """Divides work on rows [first, last) into tasks that cover all rows."""
    for first in range(0, rows, rows_per_task):
        yield partial(work, first, min(rows, first + rows_per_task))


def _write_numbers(tensor: TensorRows, target: npt.NDArray[Any], dtype: str, first: int, last: int) -> int:
    target[first:last].view(np.uint8)[...] = number_bytes(tensor, dtype, first, last)
    tensor.forget(first, last)
    return int(target[first:last].nbytes)


def number_bytes(tensor: TensorRows, dtype: str, first: int, last: int) -> npt.NDArray[np.uint8]:
    """Rows [first, last) of a tensor in a type: [rows, bytes of a row], contiguous; see `number_tasks`.

    Raises:
        WeightsError: a number does not fit into the type, or the file cannot be read.
    """
    if tensor.format == dtype and not tensor.is_changed:
        return tensor.plane_rows(0, first, last)
    try:
        numbers = encode(tensor.numbers(first, last), dtype).reshape(last - first, -1)
    except WeightsError as error:
        raise WeightsError(f"{tensor.where}: {error}") from error
    return np.ascontiguousarray(numbers).view(np.uint8)


def run_tasks(pool: ThreadPoolExecutor, tasks: Sequence[Task], tell: Callable[[int], None]) -> None:
    """Runs all tasks; all have ended when it returns or raises.

    Args:
        pool: starts the tasks in their order. If it cannot start a thread, it can be used no more.
        tasks: what to run.
        tell: called in this thread with the result of each task when it ends.

    Raises:
        Exception: of the first task in order that failed, as if a single thread ran them; tasks that have not begun
            are dropped. Or whatever `tell` raised.
        WeightsError: the system cannot start more threads.
    """
    futures: list[Future[int]] = []
    try:
        _submit(pool, tasks, futures)
        for future in as_completed(futures):
            if future.exception() is not None:
                break
            tell(future.result())
    finally:
        _end(futures)
    for future in futures:
        if not future.cancelled():
            future.result()


def _submit(pool: ThreadPoolExecutor, tasks: Sequence[Task], futures: list[Future[int]]) -> None:
    """Queues all tasks. A failure may leave a queued task without a future, so the pool is then shut down."""
    try:
        futures += (pool.submit(task) for task in tasks)
    except BaseException as error:
        _shut(pool)
        if isinstance(error, RuntimeError):
            raise WeightsError(
                f"the system starts no thread to load weights ({error}); end other processes, or raise the limit of "
                "threads (ulimit -u)"
            ) from error
        raise


def _shut(pool: ThreadPoolExecutor) -> None:
    try:
        pool.shutdown(cancel_futures=True)
    except BaseException:
        _shut(pool)
        raise


def _end(futures: Sequence[Future[int]]) -> None:
    """Drops tasks that have not begun and waits for the others, also when interrupted: they write to our memory."""
    try:
        for future in futures:
            future.cancel()
        wait(futures)
    except BaseException:
        _end(futures)
        raise
