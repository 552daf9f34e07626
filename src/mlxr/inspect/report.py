"""The text of `mlxr inspect`: the model, its memory, and its launches."""

import math
import textwrap
from collections.abc import Iterator, Sequence

from mlxr.compiler.artifact import Artifact, BatchDim, Program
from mlxr.compiler.artifact.typical_steps import chunk_dims, decode_dims
from mlxr.compiler.spec.heads_text import heads_of
from mlxr.compiler.text import counted, size
from mlxr.inspect.launches import FoldedLayers, LaunchRow, LibraryRow, PhaseRows, phase_rows
from mlxr.inspect.layers import ranges, without_layer
from mlxr.inspect.text_table import NARROWEST, Column, Heading, Ink, Row, render_table

_ABOUT = {
    "decode": "one new token for each sequence",
    "prefill": "prompts, chunks of them, and batches that mix prompts and decoding",
    "copy_blocks": "before a step that writes into shared blocks, or reads restored ones",
}


def scenarios(artifact: Artifact) -> dict[str, dict[BatchDim, int]]:
    """Decode batches whose launches may differ, by their names in the report."""
    plan = artifact.plan
    whole = plan.whole_context
    batches = {"1 sequence": decode_dims(1, whole)}
    if plan.arena.max_sequences > 1:
        batches[f"{plan.arena.max_sequences} sequences"] = decode_dims(plan.arena.max_sequences, whole)
    if plan.arena.context > whole:
        batches[f"1 sequence of more than {whole} tokens"] = decode_dims(1, whole + 1)
    return batches


def report(artifact: Artifact, width: int, ink: Ink, all_launches: bool = False, target: str = "metal") -> str:
    """The whole text, ending in a newline.

    Args:
        artifact: what to show.
        width: columns of the terminal.
        ink: whether to use escape codes.
        all_launches: one row for each launch instead of one for each launch of a representative layer.
        target: whose program.
    """
    lines = list(_head(artifact, target, width, ink))
    for phase in phase_rows(artifact, target):
        lines.append("")
        lines += _section(artifact, phase, width, ink, all_launches)
    lines += _choices(artifact, target, width, ink)
    return "\n".join(lines) + "\n"


def parameters(artifact: Artifact) -> int:
    """Elements of all weights."""
    return sum(math.prod(weight.shape) for weight in artifact.plan.weights)


def count(number: int) -> str:
    """A large number for people: 17.8 M."""
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return str(number)


def bits_text(program: Program) -> str:
    """What the bits of a sequence's logits, K and V depend on, for people."""
    if program.batch_invariant:
        return "whatever else is in a batch, and however a sequence is cut into steps"
    return "with what else is in a batch, and how a sequence is cut into steps; --deterministic fixes them"


def _head(artifact: Artifact, target: str, width: int, ink: Ink) -> Iterator[str]:
    spec, plan, program = artifact.spec, artifact.plan, artifact.plan.program(target)
    model, memory, arena = spec.model, program.memory, program.arena
    about = (
        f"{count(parameters(artifact))} parameters, {model.num_layers} layers, hidden size {model.hidden_size}, "
        f"{heads_of(model, of='query heads', head_dim=True)}, "
        f"context {model.context}, up to {arena.max_sequences} sequence{'s' if arena.max_sequences > 1 else ''}"
    )
    first = textwrap.wrap(f"{spec.name}: {about}", max(width, NARROWEST), subsequent_indent="  ")
    yield first[0].replace(spec.name, ink.bold(spec.name), 1)
    yield from first[1:]
    dtypes = sorted({str(part.format) for weight in plan.weights for part in weight.parts})
    phases = ", ".join(f"{phase.name} {size(phase.activation_bytes)}" for phase in program.phases)
    budget = "no budget" if memory.budget_bytes is None else f"of a budget of {size(memory.budget_bytes)}"
    others = {name: other.memory for name, other in plan.programs.items() if name != target}
    totals = [f"target {name}: {size(memory.total_bytes)}" for name, memory in others.items()]
    for name, value, text in (
        ("weights", size(memory.weights_bytes), f"{len(plan.weights)} tensors, {', '.join(dtypes)}"),
        ("arena", size(memory.arena_bytes), f"{arena.mode}; {arena.summary}"),
        ("activations", size(memory.activation_bytes), f"the larger of {phases}"),
        ("total", size(memory.total_bytes), "; ".join((*totals, budget))),
        *_beside(artifact),
        *(("types", name, str(each.types)) for name, each in plan.programs.items()),
        ("kernels", str(len(program.kernels)), "show one with --kernel NAME"),
        ("geometry", artifact.chip.name, f"chosen for {artifact.chip.title}"),
        ("bits", "the same" if program.batch_invariant else "may vary", bits_text(program)),
    ):
        label = f"  {name:<11}  {value:>9}  "
        yield from textwrap.wrap(
            label + text, max(width, NARROWEST), subsequent_indent=" " * min(len(label), width // 4)
        )


def _beside(artifact: Artifact) -> Iterator[tuple[str, str, str]]:
    """What the CPU takes of the machine's memory, where it has some layers' experts beside a card."""
    if (experts := artifact.experts) is None:
        return
    memory = experts.plan.largest_memory
    layers = counted(artifact.spec.experts_on_cpu, "layer")
    parts = (
        f"weights {size(memory.weights_bytes)}, activations {size(memory.activation_bytes)}, "
        f"rows that both see {size(memory.handover_bytes)}"
    )
    yield "on the CPU", size(memory.total_bytes), f"the experts of the first {layers}: {parts}"


def _section(artifact: Artifact, phase: PhaseRows, width: int, ink: Ink, all_launches: bool) -> Iterator[str]:
    head = f"{phase.name}: {_ABOUT[phase.name]}"
    for number, line in enumerate(textwrap.wrap(head, max(width, NARROWEST), subsequent_indent="  ")):
        yield ink.bold(line) if number == 0 else line
    for total in _totals(artifact, phase):
        yield from textwrap.wrap(f"  {total}", max(width, NARROWEST), subsequent_indent="    ")
    columns = (
        Column("#" if all_launches else "n", 9, right=True),
        Column("op", 2, named=False),
        Column("kernel", 8, named=False),
        Column("grid", 7),
        Column("threads", 5, right=True),
        Column("when", 6),
        Column("tg mem", 4, right=True),
        Column("weights", 3, right=True),
        Column("inputs -> outputs", 1, named=False),
    )
    outside = "" if all_launches else "1"
    rows: list[Row] = [*_library_cells(phase.first, outside, None)]
    if all_launches:
        for row in phase.rows:
            rows.append(_cells(row, str(row.index), row.launch.op))
            rows += _library_cells(row.library, "", None)
    else:
        for block in phase.blocks:
            rows += _block(block, len(phase.blocks) > 1)
    rows += _library_cells(phase.last, outside, None)
    yield from render_table(columns, rows, width, ink)
    if any(row.per_token for row in phase.rows):
        yield ink.dim("* for each token"[: max(width, NARROWEST)])


def _choices(artifact: Artifact, target: str, width: int, ink: Ink) -> Iterator[str]:
    """What rules chose for each kind of launch, with their reasons; sizes that no rule sets are left out."""
    program = artifact.plan.program(target)
    of_phases = [phase.chosen for phase in program.phases if phase.chosen]
    of_arena = [artifact.plan.arena_chosen] if artifact.plan.arena_chosen else []
    of_arena.append(artifact.plan.chunk)
    chosen = [kernel.chosen for kernel in program.kernels if kernel.chosen] + of_phases + of_arena
    order = {choice.site: index for index, choice in reversed(list(enumerate(chosen)))}
    lines = {
        (order[choice.site], choice.site, f"{name} {choice.sizes[name]}", why)
        for choice in chosen
        for name, why in choice.why.items()
    }
    if lines:
        yield from ("", ink.bold("geometry: what was chosen, and why"))
        columns = (Column("launch", 3), Column("size", 2), Column("because", 1, named=False))
        yield from render_table(columns, [cells for _, *cells in sorted(lines)], width, ink)


def _block(block: FoldedLayers, titled: bool) -> Iterator[Row]:
    if block.layers:
        many = f"each row is {block.times} launches" if block.times > 1 else "each row is 1 launch"
        yield Heading(f"layer{'s' if block.times > 1 else ''} {ranges(block.layers)}: {many}")
    elif titled and block.rows[0].index:
        yield Heading("after the layers: each row is 1 launch")
    for row in block.rows:
        times = str(block.times)
        yield _cells(row, times, without_layer(row.launch.op, row.layer))
        yield from _library_cells(row.library, times, row.layer)


def _cells(row: LaunchRow, number: str, op: str) -> tuple[str, ...]:
    weights = f"{size(row.weight_bytes)}{'*' if row.per_token else ''}" if row.weight_bytes else "-"
    memory = size(row.kernel.threadgroup_bytes) if row.kernel.threadgroup_bytes else "-"
    return (number, op, row.launch.kernel, row.grid, str(row.kernel.threads), row.when, memory, weights, row.flow)


def _library_cells(calls: Sequence[LibraryRow], number: str, layer: int | None) -> Iterator[Row]:
    """The calls of MLX's functions that replace a kernel, and exchanges with other ranks."""
    for call in calls:
        yield (number, without_layer(call.launch.op, layer), call.name, "-", "-", call.when, "-", "-", call.flow)


def _totals(artifact: Artifact, phase: PhaseRows) -> Iterator[str]:
    if phase.name == "copy_blocks":
        yield "1 launch"
        return
    if phase.name == "prefill":
        rows = phase.running(chunk_dims(artifact.plan))
        yield f"{_split(rows)}, for up to {artifact.plan.max_tokens} tokens a chunk"
        return
    texts: dict[str, list[str]] = {}
    for name, dims in scenarios(artifact).items():
        rows = phase.running(dims)
        read = sum(row.weight_bytes for row in rows if not row.per_token)
        texts.setdefault(f"{_split(rows)}, reading {size(read)} of weights and embedding rows", []).append(name)
    for text, names in texts.items():
        yield f"{' or '.join(names)}: {text}"


def _split(rows: list[LaunchRow] | tuple[LaunchRow, ...]) -> str:
    """A total and its parts: `32 launches (5 in each of 6 layers, 2 outside)`."""
    per_layer: dict[int, int] = {}
    for row in rows:
        if row.layer is not None:
            per_layer[row.layer] = per_layer.get(row.layer, 0) + 1
    outside = len(rows) - sum(per_layer.values())
    each = "-".join(str(n) for n in sorted({min(per_layer.values()), max(per_layer.values())})) if per_layer else "0"
    return f"{len(rows)} launches ({each} in each of {len(per_layer)} layers, {outside} outside)"
