"""Finds what a step program lets run side by side that must not: word by word, by none of the program's own code."""

from collections.abc import Iterable

from mlxr.runtime.hosts.cuda.step_program import Entry, StepProgram

Words = set[tuple[str, int]]


def words_of(entry: Entry) -> tuple[Words, Words]:
    """The words of 4 bytes that a launch reads, and those that it writes; of a whole argument one stands for all."""
    ports = [*entry.kernel.inputs, *entry.kernel.outputs]
    names = [port.name for port in ports]
    read: Words = set()
    written: Words = set()
    for i, (place, name) in enumerate(zip(entry.operands, names, strict=True)):
        whole = place.size_bytes > 1 << 40
        first, count = (0, 1) if whole else (place.offset_bytes // 4, -(-place.size_bytes // 4))
        words = {(place.argument, word) for word in range(first, first + count)}
        if i < len(entry.kernel.inputs):
            read |= words
        if i >= len(entry.kernel.inputs) or (name in ("k_arena", "v_arena") and "token_out" in names):
            written |= words
    return read, written


def races(program: StepProgram, masks: Iterable[int]) -> list[str]:
    """Launches that touch what one since the last barrier wrote, or write what one read."""
    found = []
    for mask in masks:
        read_before: Words = set()
        written_before: Words = set()
        for index, entry in enumerate(program.entries):
            if entry.condition is not None and not mask >> entry.condition & 1:
                continue
            if entry.waits:
                read_before, written_before = set(), set()
            read, written = words_of(entry)
            if (read | written) & written_before or written & read_before:
                found.append(f"{entry.kernel.name}, launch {index}, mask {mask}")
            read_before |= read
            written_before |= written
    return found
