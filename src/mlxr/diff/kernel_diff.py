"""Kernels of a target that were added, removed or changed, and by which lines."""

import difflib
from collections import Counter
from collections.abc import Sequence

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.spec.record import Record
from mlxr.diff.field_changes import Change, FieldChange, field_changes
from mlxr.diff.kernel_sources import ComparedKernel, kernel_sources


class KernelChange(Record):
    """A kernel that differs.

    Attributes:
        label: its purpose, for people.
        a, b: its name in each program; null where it is missing.
        fields: what differs besides the text: threads, sizes, types of buffers, launches, grid.
        lines_added, lines_removed: lines that differ.
        lines: a unified diff of the texts, if it was asked for and they differ.
    """

    change: Change
    label: str
    a: str | None = None
    b: str | None = None
    fields: tuple[FieldChange, ...] = ()
    lines_added: int = 0
    lines_removed: int = 0
    lines: str | None = None


class TargetDiff(Record):
    """The differences of a target's program; `same` counts kernels that are the same and launched alike."""

    target: str
    same: int
    changes: tuple[KernelChange, ...]


def kernel_diff(a: Artifact, b: Artifact, target: str, *, lines: bool = False) -> TargetDiff:
    """Compares the programs of a target that both have.

    Args:
        a: the first artifact.
        b: the second artifact.
        target: whose programs.
        lines: whether to add unified diffs of the sources.
    """
    of_a, of_b = kernel_sources(a, target), kernel_sources(b, target)
    pairs = _pairs(of_a, of_b)
    paired = {kernel.name for kernel in pairs.values()}
    changes = []
    for kernel in of_a:
        if kernel.name in pairs:
            changes.append(_compared(kernel, pairs[kernel.name], lines))
        else:
            changes.append(KernelChange(change="removed", label=kernel.label, a=kernel.name))
    changes += [
        KernelChange(change="added", label=kernel.label, b=kernel.name) for kernel in of_b if kernel.name not in paired
    ]
    differ = [change for change in changes if change is not None]
    return TargetDiff(target=target, same=len(changes) - len(differ), changes=tuple(differ))


def _pairs(a: Sequence[ComparedKernel], b: Sequence[ComparedKernel]) -> dict[str, ComparedKernel]:
    """The kernel in B of each name in A: that of the same text, else of the same label with most lines in common."""
    left = list(b)
    pairs: dict[str, ComparedKernel] = {}
    for likeness in (_equal, _common):
        for kernel in a:
            if kernel.name in pairs:
                continue
            likely = [other for other in left if other.label == kernel.label and likeness(kernel, other) is not None]
            if likely:
                pairs[kernel.name] = max(likely, key=lambda other: likeness(kernel, other) or 0)
                left.remove(pairs[kernel.name])
    return pairs


def _equal(a: ComparedKernel, b: ComparedKernel) -> int | None:
    return int(a.facts == b.facts) if a.text == b.text else None


def _common(a: ComparedKernel, b: ComparedKernel) -> int | None:
    return (Counter(a.text.splitlines()) & Counter(b.text.splitlines())).total()


def _compared(a: ComparedKernel, b: ComparedKernel, lines: bool) -> KernelChange | None:
    fields = field_changes(a.facts, b.facts)
    if not fields and a.text == b.text:
        return None
    diff = list(difflib.unified_diff(a.text.splitlines(), b.text.splitlines(), a.name, b.name, lineterm=""))[2:]
    return KernelChange(
        change="changed",
        label=a.label,
        a=a.name,
        b=b.name,
        fields=fields,
        lines_added=sum(line.startswith("+") for line in diff),
        lines_removed=sum(line.startswith("-") for line in diff),
        lines="\n".join([f"--- {a.name}", f"+++ {b.name}", *diff]) if lines and diff else None,
    )
