"""`mlxr inspect --target cpu`: the calls of a program in C, with layers that are alike folded into one."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from mlxr.compiler.artifact import LATER, Artifact, CLibrary, CTensor, KernelEntry, Launch, Op, Program
from mlxr.compiler.errors import ArtifactError
from mlxr.compiler.ir.ops.rows import Embed
from mlxr.compiler.text import size
from mlxr.inspect.layers import alike, model_layer, ranges, without_layer
from mlxr.inspect.report import bits_text
from mlxr.inspect.text_table import NARROWEST, Column, Heading, Ink, Row, render_table


@dataclass(frozen=True)
class CallRow:
    """A call, and what the table says about it.

    Attributes:
        weight_bytes: bytes of weights that it reads once, or for each token when `per_token`.
        formats: of those weights, in order, each once.
    """

    phase: str
    index: int
    launch: Launch
    weight_bytes: int
    per_token: bool
    formats: tuple[str, ...]

    @property
    def layer(self) -> int | None:
        """The layer of the model that it belongs to; None for one outside of the layers."""
        return model_layer(self.launch.op, self.launch.layer)

    @property
    def signature(self) -> tuple[object, ...]:
        """What the calls of two layers share when the layers are alike."""
        return (self.launch.kernel, without_layer(self.launch.op, self.layer), self.weight_bytes, self.formats)


def call_rows(artifact: Artifact, program: Program) -> list[CallRow]:
    """Every call of both phases of a program in C."""
    tensors = {tensor.name: tensor for tensor in _library(program).tensors}
    rows = []
    for phase in program.phases:
        ops = {op.name: op for op in artifact.graph(phase.name).ops}
        for i, launch in enumerate(phase.launches):
            ports = program.kernel(launch.kernel).inputs
            names = [name for name, port in zip(launch.inputs, ports, strict=True) if port.name != LATER]
            rows.append(_row(phase.name, i, launch, ops.get(launch.op), [tensors[n] for n in names if n in tensors]))
    return rows


def _library(program: Program) -> CLibrary:
    assert program.library is not None, "only programs in C are shown so"
    return program.library


def _row(phase: str, index: int, launch: Launch, op: Op | None, read: list[CTensor]) -> CallRow:
    """The row of a call of an op and of the tensors that it reads; of none for a table that first calls make."""
    gathers = op is not None and isinstance(op.attrs, Embed)
    total = sum(tensor.size_bytes // tensor.shape[0] if gathers else tensor.size_bytes for tensor in read)
    matrices = [str(tensor.format) for tensor in read if tensor.layout != "vector"]
    return CallRow(phase, index, launch, total, gathers, tuple(dict.fromkeys(matrices)))


def c_report(artifact: Artifact, width: int, ink: Ink, all_launches: bool = False, target: str = "cpu") -> str:
    """The text for people; see `mlxr.inspect.report.report`."""
    program = artifact.plan.program(target)
    rows, memory, library = call_rows(artifact, program), program.memory, _library(program)
    about = (
        f"{artifact.spec.name}: {len(program.kernels)} C functions in {program.files[0]}, compute {library.compute}; "
        f"{size(memory.weights_bytes)} of weights, {size(memory.arena_bytes)} of arena, "
        f"{program.types}; {size(memory.activation_bytes)} of scratch, "
        f"and {size(library.thread_bytes)} for each thread after the first; "
        f"bits {'are the same' if program.batch_invariant else 'may vary'} {bits_text(program)}"
    )
    lines = textwrap.wrap(about, max(width, NARROWEST), subsequent_indent="  ")
    for phase in program.phases:
        of_phase = [row for row in rows if row.phase == phase.name]
        read = sum(row.weight_bytes for row in of_phase if not row.per_token)
        lines += ["", ink.bold(f"{phase.name}: {len(of_phase)} calls, reading {size(read)} of weights")]
        columns = (
            Column("#" if all_launches else "n", 9, right=True),
            Column("op", 2, named=False),
            Column("function", 8, named=False),
            Column("weights", 3, right=True),
            Column("formats", 4),
        )
        table = [_cells(row, str(row.index), row.launch.op) for row in of_phase] if all_launches else _folded(of_phase)
        lines += render_table(columns, list(table), width, ink)
    return "\n".join(lines) + "\n"


def _folded(rows: list[CallRow]) -> Iterator[Row]:
    by_layer: dict[int, list[CallRow]] = {}
    for row in rows:
        if row.layer is not None:
            by_layer.setdefault(row.layer, []).append(row)
    groups = {group[0]: group for group in alike({k: tuple(r.signature for r in v) for k, v in by_layer.items()})}
    for row in rows:
        layer = row.layer
        if layer is None:
            if by_layer and row.index == 1 + max(r.index for r in by_layer[max(by_layer)]):
                yield Heading("after the layers: each row is 1 call")
            yield _cells(row, "1", row.launch.op)
        elif layer in groups:
            group = groups.pop(layer)
            many = f"{len(group)} calls" if len(group) > 1 else "1 call"
            yield Heading(f"layer{'s' if len(group) > 1 else ''} {ranges(group)}: each row is {many}")
            for call in by_layer[layer]:
                yield _cells(call, str(len(group)), without_layer(call.launch.op, layer))


def _cells(row: CallRow, number: str, op: str) -> tuple[str, ...]:
    weights = f"{size(row.weight_bytes)}{'*' if row.per_token else ''}" if row.weight_bytes else "-"
    return (number, op, row.launch.kernel, weights, ", ".join(row.formats) or "-")


def c_function(artifact: Artifact, name: str, target: str) -> tuple[dict[str, object], str]:
    """A C function by its name or label: what the plan says about it, and its text with the comment above it.

    Raises:
        ArtifactError: the program has no such function, or several.
    """
    kernels = artifact.plan.program(target).kernels
    matches = [kernel for kernel in kernels if name in (kernel.name, kernel.label)]
    if len(matches) != 1:
        what = "several functions" if matches else "no function"
        known = ", ".join(kernel.name if matches else kernel.label for kernel in (matches or kernels))
        raise ArtifactError(f"the C program has {what} named {name!r}. It has {known}")
    pattern = rf"((?:^//[^\n]*\n)*)^static [^\n]*\b{re.escape(matches[0].name)}\([^{{;]*\{{.*?^\}}\n"
    match = re.search(pattern, artifact.source(target), re.MULTILINE | re.DOTALL)
    assert match, f"{matches[0].name} is in the C program: its templates end a function with a brace of its own line"
    return _function_json(matches[0]), match[0]


def _function_json(kernel: KernelEntry) -> dict[str, object]:
    return {"name": kernel.name, "label": kernel.label}


def c_json(artifact: Artifact, target: str = "cpu") -> dict[str, object]:
    """The same for programs."""
    program = artifact.plan.program(target)
    library = _library(program)
    return {
        "file": program.files[0],
        "compute": library.compute,
        "batch_invariant": program.batch_invariant,
        "types": program.types.model_dump(mode="json"),
        "memory": program.memory.model_dump() | {"total_bytes": program.memory.total_bytes},
        "bytes_per_thread": library.thread_bytes,
        "functions": [_function_json(kernel) for kernel in program.kernels],
        "calls": [
            {
                "step": row.phase,
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
            for row in call_rows(artifact, program)
        ],
    }
