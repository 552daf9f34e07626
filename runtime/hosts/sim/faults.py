"""The message of a launch whose kernel did something illegal."""

from typing import Final

from mlxr.runtime.hosts.sim.library import CFault
from mlxr.runtime.hosts.sim.signature import Param

# The order of these names is that in sim_runtime.h.
(
    _OK,
    OUT_OF_BOUNDS,
    READ_ONLY,
    MISALIGNED,
    UNINITIALISED,
    RACE,
    CONFLICT,
    THREADGROUP_FULL,
    DIVERGENT,
    THREAD_RETURNED,
    LANE,
    INDEX,
    DIVISION,
    OVERLAP,
    PRIVATE,
) = range(15)
_IN_NOTHING, _IN_DEVICE, _IN_THREADGROUP = range(3)
OPERATIONS: Final = (
    "simd_sum",
    "simd_product",
    "simd_max",
    "simd_min",
    "simd_sum",
    "simd_product",
    "simd_max",
    "simd_min",
    "simd_max",
    "simd_min",
    "simd_and",
    "simd_or",
    "simd_xor",
    "simd_prefix_exclusive_sum",
    "simd_prefix_inclusive_sum",
    "simd_prefix_exclusive_sum",
    "simd_prefix_inclusive_sum",
    "simd_ballot, simd_any or simd_all",
    "simd_shuffle",
    "simd_shuffle_xor",
    "simd_shuffle_up",
    "simd_shuffle_down",
    "simd_broadcast",
    "simdgroup_barrier",
    "threadgroup_barrier",
)


def describe(
    kernel: str,
    fault: CFault,
    params: tuple[Param, ...],
    threadgroups: tuple[int, int, int],
    threads: tuple[int, int, int],
) -> str:
    """A message that says which kernel did what, where, and in which thread.

    Args:
        kernel: the kernel's name.
        fault: what the runtime recorded.
        params: the kernel's buffers.
        threadgroups: the grid's size.
        threads: the threadgroup's size.
    """
    if fault.kind == OVERLAP:
        return f"kernel {kernel!r}: {_what(fault, params, threadgroups, threads)}"
    line = fault.site >> 12
    at = f", line {line}" if line else ""
    group = tuple(fault.group)
    who = f"threadgroup {group}, thread {_position(fault.thread, threads)}"
    return f"kernel {kernel!r}{at}: {_what(fault, params, threadgroups, threads)}; {who}"


def _position(thread: int, threads: tuple[int, int, int]) -> tuple[int, int, int]:
    return thread % threads[0], thread // threads[0] % threads[1], thread // threads[0] // threads[1]


def _object(fault: CFault, params: tuple[Param, ...]) -> str:
    if fault.object_kind == _IN_DEVICE:
        return f"buffer {params[fault.object].name!r} (index {fault.object}, {fault.object_size} bytes)"
    return f"threadgroup array {fault.name.decode('ascii', 'replace')!r} ({fault.object_size} bytes)"


def _operation(operation: int, site: int) -> str:
    return f"{OPERATIONS[operation]} (line {site >> 12}, column {site & 4095})"


def _what(fault: CFault, params: tuple[Param, ...], groups: tuple[int, int, int], threads: tuple[int, int, int]) -> str:
    access = f"{'write' if fault.is_write else 'read'} of {fault.size} bytes"
    other = _position(fault.other, threads)
    match fault.kind:
        case k if k == OUT_OF_BOUNDS and fault.object_kind == _IN_NOTHING:
            return f"out of bounds: {access} at address {fault.offset:#x}, which is in no buffer"
        case k if k == OUT_OF_BOUNDS:
            return f"out of bounds: {access} at byte {fault.offset} of {_object(fault, params)}"
        case k if k == READ_ONLY:
            return f"write to a read-only input: {access} at byte {fault.offset} of {_object(fault, params)}"
        case k if k == MISALIGNED:
            return f"misaligned {access} at byte {fault.offset} of {_object(fault, params)}"
        case k if k == UNINITIALISED:
            return (
                f"{access} at byte {fault.offset} of {_object(fault, params)}, which no thread of this threadgroup has "
                "written yet (never, or a barrier is missing)"
            )
        case k if k == RACE:
            did = "wrote" if fault.other_wrote else "read"
            return (
                f"race: {access} at byte {fault.offset} of {_object(fault, params)}, which thread {other} {did} "
                "with no barrier between"
            )
        case k if k == CONFLICT:
            where = _position(fault.other_group, groups)
            return (
                f"conflict: {access} at byte {fault.offset} of {_object(fault, params)}, which thread {other} of "
                f"threadgroup {where} wrote in this launch with no barrier between"
            )
        case k if k == THREADGROUP_FULL:
            name = fault.name.decode("ascii", "replace")
            return (
                f"threadgroup memory is full: array {name!r} needs {fault.object_size} bytes, {fault.offset} of "
                f"{fault.size} are in use"
            )
        case k if k == DIVERGENT:
            return (
                f"divergent {_operation(fault.operation, fault.site)}: thread {other} waits at "
                f"{_operation(fault.other_operation, fault.other_site)}"
            )
        case k if k == THREAD_RETURNED:
            return f"divergent {_operation(fault.operation, fault.site)}: thread {other} has returned"
        case k if k == LANE:
            return (
                f"{_operation(fault.operation, fault.site)}: every lane must name the same existing lane or distance, "
                f"got {fault.other_operation} and, in thread {other}, {fault.other_site}"
            )
        case k if k == INDEX:
            return f"out of bounds: index {fault.offset} of an array of known length"
        case k if k == PRIVATE:
            return "out of bounds: an access outside of a private array"
        case k if k == OVERLAP:
            return f"{_object(fault, params)} is written and shares memory with buffer {params[fault.other].name!r}"
        case k if k == DIVISION:
            return "integer division by zero, or of the smallest integer by -1"
    return f"fault {fault.kind}"
