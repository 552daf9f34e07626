"""The text of `mlxr diff`."""

import textwrap
from collections.abc import Iterator, Sequence

from mlxr.compiler.text import size
from mlxr.diff.field_changes import Change
from mlxr.diff.graph_diff import GraphDiff, OpChange
from mlxr.diff.kernel_diff import KernelChange, TargetDiff
from mlxr.diff.memory_diff import MemoryDiff
from mlxr.diff.model_diff import ModelDiff, Side
from mlxr.diff.time_diff import StepPrediction, TimeDiff
from mlxr.diff.weight_diff import WeightChange
from mlxr.inspect.layers import ranges
from mlxr.inspect.report import count
from mlxr.inspect.text_table import NARROWEST, Ink

_SIGNS: dict[Change, str] = {"added": "+", "removed": "-", "changed": "~"}
_GRAPHS = {"source": "graph as built", "decode": "graph of decode", "prefill": "graph of prefill"}


def diff_text(diff: ModelDiff, width: int, ink: Ink) -> str:
    """The text for people, ending in a newline; only the lines of sources are wider than `width` columns."""
    lines = [*_side("A", diff.a), *_side("B", diff.b)]
    if diff.same:
        lines.append("both are the same, byte for byte")
    for title, changes in (("spec", diff.spec), ("chip", diff.chip), ("plan", diff.plan)):
        if changes:
            lines += ["", ink.bold(f"{title}: {_fields(len(changes))}"), *(f"  {change}" for change in changes)]
    for graph in diff.graphs:
        lines += _graph(graph, ink)
    lines += _weights(diff.weights, ink)
    shortened = [line for text in lines for line in _wrapped(text, width)]
    for target in diff.targets:
        shortened += _kernels(target, width, ink)
    rest = [line for memory in diff.memory for line in _memory(memory, ink)]
    rest += _time(diff.time, ink)
    if diff.files:
        rest += ["", ink.bold("other files that differ"), *(f"  {path}" for path in diff.files)]
    return "\n".join([*shortened, *(line for text in rest for line in _wrapped(text, width))]) + "\n"


def _wrapped(text: str, width: int) -> list[str]:
    """A line, in several if it is too wide; what follows the first is further in."""
    indent = len(text) - len(text.lstrip())
    return textwrap.wrap(
        text,
        max(width, NARROWEST),
        subsequent_indent=" " * min(indent + 4, NARROWEST // 2),
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
    ) or [""]


def _side(letter: str, side: Side) -> Iterator[str]:
    yield f"{letter}: {side.name}, for {' and '.join(side.targets)}, {side.chip}, digest {side.digest[:12]}"


def _fields(number: int) -> str:
    return f"{number} field{'s differ' if number > 1 else ' differs'}"


def _graph(graph: GraphDiff, ink: Ink) -> Iterator[str]:
    if not graph.changes:
        return
    ops = str(graph.ops_a) if graph.ops_a == graph.ops_b else f"{graph.ops_a} -> {graph.ops_b}"
    yield ""
    yield ink.bold(f"{_GRAPHS[graph.graph]}: {ops} ops; {_counts(graph.changes)}")
    for change in graph.changes:
        yield f"  {_SIGNS[change.change]} {_where(change.layers)}{change.kind} {change.op}"
        yield from (f"      {field}" for field in change.fields)


def _counts(changes: Sequence[OpChange] | Sequence[WeightChange]) -> str:
    """How many ops or tensors were added, removed and changed, in all layers together."""
    totals = {
        name: sum(max(1, len(change.layers)) for change in changes if change.change == name)
        for name in ("added", "removed", "changed")
    }
    return ", ".join(f"{number} {name}" for name, number in totals.items() if number)


def _where(layers: Sequence[int]) -> str:
    return f"layer{'s' if len(layers) > 1 else ''} {ranges(layers)}: " if layers else ""


def _weights(changes: Sequence[WeightChange], ink: Ink) -> Iterator[str]:
    if not changes:
        return
    yield ""
    yield ink.bold(f"weights: {_counts(changes)}")
    for change in changes:
        sizes = [size(number) for number in (change.bytes_a, change.bytes_b) if number is not None]
        each = " each" if len(change.layers) > 1 else ""
        about = "; ".join([*map(str, change.fields), " -> ".join(dict.fromkeys(sizes)) + each])
        yield f"  {_SIGNS[change.change]} {_where(change.layers)}{change.tensor}: {about}"


def _kernels(target: TargetDiff, width: int, ink: Ink) -> Iterator[str]:
    if not target.changes:
        return
    numbers = [sum(change.change == name for change in target.changes) for name in ("added", "removed", "changed")]
    told = [f"{number} {name}" for number, name in zip(numbers, ("added", "removed", "changed"), strict=True) if number]
    yield ""
    yield ink.bold(f"kernels of target {target.target}: {', '.join(told)}, {target.same} the same")
    for change in target.changes:
        yield from _wrapped(_kernel(change), width)
        for field in change.fields:
            yield from _wrapped(f"      {field}", width)
        if change.lines is not None:
            yield from (f"    {line}" for line in change.lines.splitlines())


def _kernel(change: KernelChange) -> str:
    if change.change != "changed":
        return f"  {_SIGNS[change.change]} {change.label} ({change.a or change.b})"
    if not change.lines_added and not change.lines_removed:
        return f"  ~ {change.label}: the same text"
    names = "" if change.a == change.b else f" ({change.a} -> {change.b})"
    plural = "" if change.lines_added == 1 else "s"
    return f"  ~ {change.label}: {change.lines_added} line{plural} added, {change.lines_removed} removed{names}"


def _memory(memory: MemoryDiff, ink: Ink) -> Iterator[str]:
    if not memory.differs:
        return
    yield ""
    yield ink.bold(f"memory of target {memory.target}")
    for each in memory.sizes:
        if each.a != each.b:
            yield f"  {each.name}: {size(each.a)} -> {size(each.b)} ({_more(each.a, each.b)})"


def _more(a: float, b: float) -> str:
    """The change from A to B in percent."""
    return f"{100 * (b - a) / a:+.1f} %" if a else "from nothing"


def _time(time: TimeDiff, ink: Ink) -> Iterator[str]:
    if not time.steps:
        yield ""
        yield f"predicted time: {time.because}"
    elif time.differs:
        yield ""
        yield ink.bold(f"predicted time on {time.chip}")
        for step in time.steps:
            a, b = step.a, step.b
            if a == b:
                yield f"  {step.step} ({a.about}): the same, {a.predicted_us:.1f} us"
                continue
            about = a.about if a.about == b.about else f"{a.about} -> {b.about}"
            change = _more(a.predicted_us / a.tokens, b.predicted_us / b.tokens)
            each = " for each token" if b.tokens > 1 else ""
            yield f"  {step.step} ({about}): {a.predicted_us:.1f} us -> {b.predicted_us:.1f} us ({change}{each})"
            yield f"      {_work(a)} -> {_work(b)}"
    else:
        yield ""
        yield f"predicted time on {time.chip}: the same"


def _work(step: StepPrediction) -> str:
    return f"{step.launches} launches, {size(step.size_bytes)}, {count(step.flops)} FLOPs"
