"""The text of a step program's kernel: the artifact's kernels as functions, and a loop that calls them.

    StepProgram -> templates/hosts/step_on_cuda.cuh.jinja -> CUDA text

Bodies are the artifact's own. What they call a threadgroup's position, its threads, memory and barrier, means another
thing here: macros that the text defines before the prelude, and the namespace around each kernel.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mlxr.compiler.artifact import Artifact, Extent, KernelEntry, WeightPlan, plane_row_bytes
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cuda.build import prelude
from mlxr.runtime.hosts.cuda.step_program import Entry, Grid, StepProgram
from mlxr.runtime.hosts.library_cache import digest
from mlxr.templates.environment import environment

TIMEOUT_SECONDS = 10
"""How long a block waits for the others before it stops the kernel."""
SHARED_BYTES = 47 << 10
"""Of a block: what CUDA gives without being asked for more, less its own."""
_MOST_GROUPS = 15  # hardware has 16 barriers; one is the block's
_MOST_ARGUMENTS = 4000  # of 8 bytes; CUDA takes 32,764
_DEFINE = re.compile(r"^#define (?!MLXR_)(\w+)", re.MULTILINE)
_LINE_BYTES = 128
_DIMS = ("tokens", "seqs", "rows", "tiles")
"""What the buffer of dims says, in order."""
_ARRAY = re.compile(r"\bMLXR_THREADGROUP\(")


@dataclass(frozen=True)
class StepText:
    """A CUDA text; its one kernel is extern "C" and has this name."""

    name: str
    text: str


@dataclass(frozen=True)
class _Function:
    """A kernel as a function; fields that the template prints.

    Attributes:
        sizes: what declares the axes of its grid that depend on the batch.
        axes: threadgroups along each axis.
        groups: threadgroups that a block runs side by side.
        group_bytes: of threadgroup memory.
    """

    name: str
    kernel: KernelEntry
    sizes: tuple[str, ...]
    axes: tuple[str, str, str]
    groups: int
    group_bytes: int
    header: str
    body: str
    macros: tuple[str, ...]


@dataclass(frozen=True)
class _Row:
    """A launch in the program's table."""

    function: int
    waits: bool
    condition: int
    first: int
    first_span: int = 0
    num_spans: int = 0
    lines: int = 0


def step_text(artifact: Artifact, program: StepProgram, threads: int, blocks: int, prefetch: int = 0) -> StepText:
    """The text of a program.

    Args:
        artifact: whose kernels are launched.
        program: of its plan.
        threads: of a block.
        blocks: that a multiprocessor shall hold at once.
        prefetch: KiB of weights that each block asks for while it waits; 0: none.

    Raises:
        HostError: a kernel does not fit a block, or there are too many of anything.
    """
    functions: dict[tuple[str, Grid], _Function] = {}
    arguments = (*program.inputs, *program.outputs)
    number = {name: i for i, name in enumerate(arguments)}
    operands, rows = [], []
    for entry in program.entries:
        operands += [(number[place.argument], place.offset_bytes) for place in entry.operands]
    pool = SHARED_BYTES - 8 * len(operands) - 8 * len(program.entries)
    if pool < 8 * len(arguments) or len(arguments) > _MOST_ARGUMENTS:
        raise HostError(
            f"a step of {len(program.entries)} launches and {len(arguments)} buffers leaves no room in the "
            f"{SHARED_BYTES} bytes of a block"
        )
    weights = {weight.name: weight for weight in artifact.plan.weights}
    spans: list[tuple[int, int, int]] = []
    first = 0
    for entry in program.entries:
        key = (entry.kernel.name, entry.grid)
        if key not in functions:
            functions[key] = _function(artifact, entry, len(functions), threads, pool)
        condition = 0 if entry.condition is None else entry.condition + 1
        ahead = list(_spans(entry, weights, first)) if prefetch else []
        lines = sum(count for _, _, count in ahead)
        index = list(functions).index(key)
        rows.append(_Row(index, entry.waits, condition, first, len(spans), len(ahead), max(1, lines)))
        spans += ahead
        first += len(entry.operands)
    used = max(f.groups * f.group_bytes for f in functions.values())
    warps = threads // 32
    values = {
        "prelude": prelude(),
        "functions": list(functions.values()),
        "entries": rows,
        "operands": operands,
        "dims": program.inputs.index("dims") if any(function.sizes for function in functions.values()) else None,
        "inputs": program.inputs,
        "outputs": program.outputs,
        "shares": [range(warp, len(arguments), warps) for warp in range(min(warps, len(arguments)))],
        "pool_bytes": max(used, 8 * len(arguments)),
        "prefetch": prefetch if threads > 32 else 0,
        "spans": spans,
        "threads": threads,
        "blocks": blocks,
        "timeout_ns": TIMEOUT_SECONDS * 10**9,
    }
    template = environment().get_template("hosts/step_on_cuda.cuh.jinja")
    name = f"step_{digest(template.render(values | {'name': 'step'}))[:8]}"
    return StepText(name, template.render(values | {"name": name}))


def _spans(entry: Entry, weights: Mapping[str, WeightPlan], first: int) -> Iterator[tuple[int, int, int]]:
    """What a launch reads of its weights from the first row on: operand, offset and lines of each plane of each part.

    Not of experts and embeddings, of which it reads a few rows that are not known yet.
    """
    alone = entry.grid == (Extent(), Extent(), Extent())
    for i, place in enumerate(entry.operands[: entry.num_inputs]):
        if place.argument not in weights or alone or any(port.name == "experts" for port in entry.kernel.inputs):
            continue
        layout = weights[place.argument].layout
        for segment in layout.segments:
            for plane, offset in enumerate(segment.offsets):
                size = segment.rows * plane_row_bytes(segment.format, plane, layout.columns)
                yield first + i, offset, -(-size // _LINE_BYTES)


def _function(artifact: Artifact, entry: Entry, index: int, threads: int, pool: int) -> _Function:
    kernel = entry.kernel
    header, body = artifact.kernel_sections(kernel.name)
    arrays = len(_ARRAY.findall(body))
    # Each array begins at a multiple of 16 bytes.
    size = -(-kernel.threadgroup_bytes // 16) * 16 + 16 * arrays if arrays else 0
    if kernel.threads % 32 or kernel.threads > threads or size > pool:
        raise HostError(
            f"kernel {kernel.name} has threadgroups of {kernel.threads} threads and {size} bytes; a block of the step "
            f"has {threads} and {pool}"
        )
    groups = min(threads // kernel.threads, _MOST_GROUPS if kernel.threads > 32 else threads // 32)
    groups = min(groups, pool // size) if size else groups
    macros = tuple(dict.fromkeys(_DEFINE.findall(header + body)))
    named = [(_axis(extent), f"grid_{axis}") for extent, axis in zip(entry.grid, "xyz", strict=True)]
    sizes = tuple(f"{name} = {text}" for text, name in named if not text[0].isdigit())
    x, y, z = (text if text[0].isdigit() else name for text, name in named)
    return _Function(f"{kernel.name}_{index}", kernel, sizes, (x, y, z), groups, size, header, body, macros)


def _axis(extent: Extent) -> str:
    """Threadgroups along an axis: a number, or an expression in parentheses."""
    if extent.dim is None:
        return f"{extent.times}u"
    dim = f"mlxr_dims[{_DIMS.index(extent.dim)}]"
    return f"({extent.times}u * (({dim} + {extent.per - 1}u) / {extent.per}u))"
