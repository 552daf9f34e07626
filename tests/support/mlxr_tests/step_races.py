"""Finds races of a step program, word by word, without using the program's own code."""

from collections.abc import Iterable

from mlxr.compiler.artifact import ATTENDED
from mlxr.compiler.targets.metal.decode_kernel.step_program import StepLaunch, StepProgram

Words = set[tuple[str, int]]


def words_of(launch: StepLaunch) -> tuple[Words, Words]:
    """The 4-byte words that a launch reads and those that it writes; one word stands for a whole argument."""
    ports = [*launch.kernel.inputs, *launch.kernel.outputs]
    names = [port.name for port in ports]
    read: Words = set()
    written: Words = set()
    for i, (place, name) in enumerate(zip(launch.operands, names, strict=True)):
        whole = place.size_bytes > 1 << 40
        first, count = (0, 1) if whole else (place.offset_bytes // 4, -(-place.size_bytes // 4))
        words = {(place.argument, word) for word in range(first, first + count)}
        if i < len(launch.kernel.inputs):
            read |= words
        if i >= len(launch.kernel.inputs) or (name in ATTENDED and "token_out" in names):
            written |= words
    return read, written


def races(program: StepProgram, masks: Iterable[int]) -> list[str]:
    """Launches that touch words written since the last barrier, or write words read since then."""
    racing = []
    for mask in masks:
        read_before: Words = set()
        written_before: Words = set()
        for index, launch in enumerate(program.launches):
            if launch.condition is not None and not mask >> launch.condition & 1:
                continue
            if launch.waits:
                read_before, written_before = set(), set()
            read, written = words_of(launch)
            if (read | written) & written_before or written & read_before:
                racing.append(f"{launch.kernel.name}, launch {index}, mask {mask}")
            read_before |= read
            written_before |= written
    return racing
