"""Bytes of weights, arena, activations and scratch, of each target that both programs are for."""

from mlxr.compiler.artifact import Program
from mlxr.compiler.spec.record import Record


class SizeDiff(Record):
    """A number of bytes in A and in B."""

    name: str
    a: int
    b: int


class MemoryDiff(Record):
    """The bytes that a target's programs need; the last of `sizes` is the total of weights, arena and activations."""

    target: str
    sizes: tuple[SizeDiff, ...]

    @property
    def differs(self) -> bool:
        """Whether any of them differ."""
        return any(size.a != size.b for size in self.sizes)


def memory_diff(target: str, a: Program, b: Program) -> MemoryDiff:
    """Compares the memory of two programs of a target."""
    of_a, of_b = _sizes(a), _sizes(b)
    names = [*dict.fromkeys((*of_a, *of_b))]
    sizes = [SizeDiff(name=name, a=of_a.get(name, 0), b=of_b.get(name, 0)) for name in names if name != _TOTAL]
    return MemoryDiff(target=target, sizes=(*sizes, SizeDiff(name=_TOTAL, a=of_a[_TOTAL], b=of_b[_TOTAL])))


_TOTAL = "total"


def _sizes(program: Program) -> dict[str, int]:
    memory, library = program.memory, program.library
    sizes = {"weights": memory.weights_bytes, "arena": memory.arena_bytes}
    batches = 1 if library is None else library.step_batches
    sizes |= {f"activations of {phase.name}": phase.activation_bytes * batches for phase in program.phases}
    if library is not None:
        sizes |= {"scratch of all threads": library.shared_bytes, "scratch of each thread": library.thread_bytes}
    if program.step_kernels:
        sizes["scratch of whole steps"] = max(step.scratch_bytes for step in program.step_kernels)
    return {**sizes, _TOTAL: memory.total_bytes}
