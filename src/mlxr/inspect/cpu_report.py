"""`mlxr inspect --target cpu`: the calls of the C program, with layers that are alike folded into one."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from mlxr.compiler.artifact import Artifact, CpuLaunch, CpuProgram, CpuTensor, Op
from mlxr.compiler.errors import ArtifactError
from mlxr.compiler.ir.ops.rows import Embed
from mlxr.compiler.text.byte_sizes import size
from mlxr.inspect.layers import alike, ranges, without_layer
from mlxr.inspect.text_table import NARROWEST, Column, Heading, Ink, Row, render_table


@dataclass(frozen=True)
class CpuRow:
    """A call, and what the table says about it.

    Attributes:
        layer: the layer it belongs to; None for one outside of the layers.
        weight_bytes: bytes of weights that it reads once, or for each token when `per_token`.
        formats: of those weights, in order, each once.
    """

    step: str
    index: int
    layer: int | None
    launch: CpuLaunch
    weight_bytes: int
    per_token: bool
    formats: tuple[str, ...]

    @property
    def signature(self) -> tuple[object, ...]:
        """What the calls of two layers share when the layers are alike."""
        return (self.launch.kernel, without_layer(self.launch.op, self.layer), self.weight_bytes, self.formats)


def cpu_rows(artifact: Artifact) -> list[CpuRow]:
    """Every call of decode and prefill.

    Raises:
        ArtifactError: the artifact has no cpu target.
    """
    program = program_of(artifact)
    tensors = {tensor.name: tensor for tensor in program.tensors}
    rows = []
    for step in program.steps:
        ops = {op.name: op for op in artifact.graph(step.name).ops}
        rows += [_row(step.name, i, launch, ops.get(launch.op), tensors) for i, launch in enumerate(step.launches)]
    return rows


def program_of(artifact: Artifact) -> CpuProgram:
    """The cpu target's part of the plan.

    Raises:
        ArtifactError: there is none.
    """
    if artifact.plan.cpu is None:
        raise ArtifactError("the artifact has no cpu target; compile it with mlxr-compile --target cpu")
    return artifact.plan.cpu


def _row(step: str, index: int, launch: CpuLaunch, op: Op | None, tensors: dict[str, CpuTensor]) -> CpuRow:
    """The row of a call of an op; of none for a table that the step's first calls make."""
    read = [tensors[name] for name in launch.inputs if name in tensors]
    gathers, layer = op is not None and isinstance(op.attrs, Embed), op.layer if op else None
    total = sum(tensor.size_bytes // tensor.shape[0] if gathers else tensor.size_bytes for tensor in read)
    matrices = [str(tensor.format) for tensor in read if tensor.layout != "vector"]
    return CpuRow(step, index, layer, launch, total, gathers, tuple(dict.fromkeys(matrices)))


def cpu_report(artifact: Artifact, width: int, ink: Ink, all_launches: bool = False) -> str:
    """The text for people; see `mlxr.inspect.report.report`."""
    program, rows = program_of(artifact), cpu_rows(artifact)
    memory = program.memory
    about = (
        f"{artifact.spec.name}: {len(program.kernels)} C functions in {program.file}, compute {program.compute}; "
        f"{size(memory.weights_bytes)} of weights, {size(memory.arena_bytes)} of arena, "
        f"{artifact.plan.types_of('cpu')}; {size(memory.activation_bytes)} of scratch, "
        f"and {size(program.thread_bytes)} for each thread after the first"
    )
    lines = textwrap.wrap(about, max(width, NARROWEST), subsequent_indent="  ")
    for step in program.steps:
        of_step = [row for row in rows if row.step == step.name]
        read = sum(row.weight_bytes for row in of_step if not row.per_token)
        lines += ["", ink.bold(f"{step.name}: {len(of_step)} calls, reading {size(read)} of weights")]
        columns = (
            Column("#" if all_launches else "n", 9, right=True),
            Column("op", 2, named=False),
            Column("function", 8, named=False),
            Column("weights", 3, right=True),
            Column("formats", 4),
        )
        table = [_cells(row, str(row.index), row.launch.op) for row in of_step] if all_launches else _folded(of_step)
        lines += render_table(columns, list(table), width, ink)
    return "\n".join(lines) + "\n"


def _folded(rows: list[CpuRow]) -> Iterator[Row]:
    by_layer: dict[int, list[CpuRow]] = {}
    for row in rows:
        if row.layer is not None:
            by_layer.setdefault(row.layer, []).append(row)
    groups = {group[0]: group for group in alike({k: tuple(r.signature for r in v) for k, v in by_layer.items()})}
    for row in rows:
        layer = row.layer
        if layer is None:
            if by_layer and row.index > max(r.index for r in by_layer[max(by_layer)]):
                yield Heading("after the layers: each row is 1 call")
            yield _cells(row, "1", row.launch.op)
        elif layer in groups:
            group = groups.pop(layer)
            many = f"{len(group)} calls" if len(group) > 1 else "1 call"
            yield Heading(f"layer{'s' if len(group) > 1 else ''} {ranges(group)}: each row is {many}")
            for call in by_layer[layer]:
                yield _cells(call, str(len(group)), without_layer(call.launch.op, layer))


def _cells(row: CpuRow, number: str, op: str) -> tuple[str, ...]:
    weights = f"{size(row.weight_bytes)}{'*' if row.per_token else ''}" if row.weight_bytes else "-"
    return (number, op, row.launch.kernel, weights, ", ".join(row.formats) or "-")


def cpu_function(artifact: Artifact, name: str) -> tuple[dict[str, object], str]:
    """A C function by its name or label: what the plan says about it, and its text with the comment above it.

    Raises:
        ArtifactError: the program has no such function, or several.
    """
    kernels = program_of(artifact).kernels
    matches = [k for k in kernels if name in (k.name, k.label)]
    if len(matches) != 1:
        what = "several functions" if matches else "no function"
        known = ", ".join(k.name if matches else k.label for k in (matches or kernels))
        raise ArtifactError(f"the C program has {what} named {name!r}. It has {known}")
    pattern = rf"((?:^//[^\n]*\n)*)^static [^\n]*\b{re.escape(matches[0].name)}\([^{{;]*\{{.*?^\}}\n"
    match = re.search(pattern, artifact.cpu_source, re.MULTILINE | re.DOTALL)
    assert match, f"{matches[0].name} is in the C program: its templates end a function with a brace of its own line"
    return matches[0].model_dump(), match[0]


def cpu_json(artifact: Artifact) -> dict[str, object]:
    """The same for programs."""
    program = program_of(artifact)
    return {
        "file": program.file,
        "compute": program.compute,
        "types": artifact.plan.types_of("cpu").model_dump(mode="json"),
        "memory": program.memory.model_dump() | {"total_bytes": program.memory.total_bytes},
        "bytes_per_thread": program.thread_bytes,
        "functions": [kernel.model_dump() for kernel in program.kernels],
        "calls": [
            {
                "step": row.step,
                "index": row.index,
                "layer": row.layer,
                "op": row.launch.op,
                "function": row.launch.kernel,
                "inputs": list(row.launch.inputs),
                "outputs": list(row.launch.outputs),
                "weight_bytes": row.weight_bytes,
                "weight_bytes_per": "token" if row.per_token else "call",
                "formats": list(row.formats),
            }
            for row in cpu_rows(artifact)
        ],
    }
