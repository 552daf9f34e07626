"""The text of a step program's kernel: the program's kernels as functions, and a loop that calls them.

    StepProgram -> templates/hosts/step_on_cuda.cuh.jinja -> CUDA text

A function's body is the Metal kernel's own. Its names for a threadgroup's position, threads, memory and barrier mean
something else here; macros before the prelude and a namespace around each kernel define them. The prelude itself
(Metal's types and functions in CUDA) belongs to the host, which uses it for all of its kernels, so the text has one
line in its place. The hash in the kernel's name covers the text with the prelude.
"""

import functools
import hashlib
import re
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from mlxr.compiler.artifact.kernel_entry import KernelEntry, body_of, header_of
from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.artifact.parallel.peer_mailboxes import TIMEOUT_S
from mlxr.compiler.artifact.step_kernel_entry import INCLUDE, PEERS
from mlxr.compiler.ir.ops.experts import SHARED_WEIGHTS
from mlxr.compiler.schedule.geometry import StepKernelSizes
from mlxr.compiler.targets.environment import environment
from mlxr.compiler.targets.metal.decode_kernel.make_step_program import NotOneKernelError
from mlxr.compiler.targets.metal.decode_kernel.rows_ahead import RowsOfFunction, rows_ahead
from mlxr.compiler.targets.metal.decode_kernel.step_program import Grid, StepLaunch, StepProgram
from mlxr.compiler.targets.metal.kernel_parts.kernel import BLOCK_BYTES

TIMEOUT_SECONDS = 10
"""How long a block waits for the others before it stops the kernel, unless a rank may be late."""
SHARED_BYTES = 47 << 10
"""Shared memory of a block: CUDA's default limit, less what CUDA itself uses."""
_MOST_BYTES = 172 << 10
"""With rows that are asked for ahead, on cards for data centres: a larger block leaves too little first-level cache."""
_MOST_GROUPS = 15  # hardware has 16 barriers; one is the block's
_MOST_ARGUMENTS = 4000  # of 8 bytes; CUDA takes 32,764
_DEFINE = re.compile(r"^#define (?!MLXR_)(\w+)", re.MULTILINE)
_DIMS = ("tokens", "seqs", "rows", "tiles")
"""The numbers in the buffer `dims`, in order."""
_ARRAY = re.compile(r"\bMLXR_THREADGROUP\(")
_AWAIT = "MLXR_AWAIT_INPUTS()"
_COPY = "MLXR_COPY_AHEAD("
_TILES = "MLXR_TILES("
_NEAR = re.compile(r"\bMLXR_NEAR\(uint4, near, (\d+)\)")
_NAME = "@step@"
"""A placeholder for the kernel's name until its hash is known."""


@dataclass(frozen=True)
class StepText:
    """A CUDA text; its only kernel is extern "C" and has this name.

    Attributes:
        passed: inputs of the program that are arguments of the kernel, in order.
        held: inputs of the program whose addresses the kernel reads in a table, in order.
        pool_bytes: shared memory that its launch asks for; 0: a block has enough by itself.
    """

    name: str
    text: str
    passed: tuple[str, ...]
    held: tuple[str, ...]
    pool_bytes: int


@dataclass(frozen=True)
class _Function:
    """A kernel as a function; the template prints these fields.

    Attributes:
        sizes: declarations of the grid's axes that depend on the batch.
        axes: threadgroups along each axis.
        groups: threadgroups that a block runs side by side.
        group_bytes: threadgroup memory of one of them.
        awaits: whether it waits for its inputs by itself, once it has loaded of its weight what it needs first.
        near_bytes: of that, what has rows which it can ask for launches ahead, as one threadgroup of a block.
        near_at: where in threadgroup memory these rows are, if it does so; None: among its other memory.
        newer: what is asked for between its rows and itself.
        from_last: whether the last blocks have its threadgroups.
        leaves: blocks, the last ones, that ask for none of its rows ahead, since they have other work then.
    """

    name: str
    kernel: KernelEntry
    sizes: tuple[str, ...]
    axes: tuple[str, str, str]
    groups: int
    group_bytes: int
    awaits: bool
    near_bytes: int
    header: str
    body: str
    macros: tuple[str, ...]
    near_at: int | None = None
    newer: int = 0
    from_last: bool = False
    leaves: int = 0


@dataclass(frozen=True)
class _Row:
    """A launch in the program's table. `asks`: a launch whose rows are asked for here, plus 1; 0: none."""

    function: int
    waits: bool
    condition: int
    first: int
    asks: int = 0


def step_text(
    program: StepProgram,
    sources: Mapping[str, str],
    weights: Container[str],
    sizes: StepKernelSizes,
    in_place: Collection[str] = (),
) -> StepText:
    """The text of a program.

    Args:
        program: the program that the kernel runs.
        sources: the Metal text of each kernel, by its name.
        weights: the names of weights.
        sizes: the geometry: threads of a block, and so on.
        in_place: weights that the CPU writes in place, as it does adapters. That may move them, so the kernel is given
            them anew in each step, and not their addresses.

    Raises:
        NotOneKernelError: a kernel does not fit a block, or there are too many launches or buffers.
    """
    held = tuple(name for name in program.inputs if name in weights and name not in in_place)
    passed = tuple(name for name in program.inputs if name not in held)
    arguments = (*passed, *program.outputs, *held)
    number = {name: i for i, name in enumerate(arguments)}
    operands = [
        (number[place.argument], place.offset_bytes) for launch in program.launches for place in launch.operands
    ]
    own = pool = SHARED_BYTES - 8 * len(operands) - 8 * len(program.launches)
    if pool < 8 * len(arguments) or len(arguments) > _MOST_ARGUMENTS:
        raise NotOneKernelError(
            f"a step of {len(program.launches)} launches and {len(arguments)} buffers leaves no room in the "
            f"{SHARED_BYTES} bytes of a block"
        )
    if any(_COPY in sources[launch.kernel.name] for launch in program.launches):
        pool = BLOCK_BYTES
    functions: list[_Function] = []
    numbers: dict[tuple[str, Grid], int] = {}
    rows: list[_Row] = []
    with_weights: list[int] = []
    first = 0
    for launch in program.launches:
        index = numbers.setdefault((launch.kernel.name, launch.grid), len(numbers))
        if index == len(functions):
            functions.append(_function(launch, sources[launch.kernel.name], index, sizes.threads, pool))
        condition = 0 if launch.condition is None else launch.condition + 1
        rows.append(_Row(index, launch.waits, condition, first))
        if launch.waits and not condition and _reads_weights(launch, weights):
            with_weights.append(len(rows) - 1)
        first += len(launch.operands)
    ahead = rows_ahead(
        [RowsOfFunction(f.groups * f.group_bytes, f.near_bytes) for f in functions],
        [row.function for row in rows],
        with_weights,
        8 * len(arguments),
        _MOST_BYTES - (SHARED_BYTES - own) if sizes.blocks == 1 else 0,  # else several blocks would not fit
    )
    rows = [replace(row, asks=ahead.asks[i] + 1) if i in ahead.asks else row for i, row in enumerate(rows)]
    functions = [
        replace(f, near_at=ahead.places[i], newer=ahead.newer[i], leaves=_busy(functions, rows, ahead.asks, i))
        if i in ahead.places
        else replace(f, from_last=bool(ahead.places) and f.kernel.label.startswith("attend"))
        for i, f in enumerate(functions)
    ]
    used = ahead.bytes
    warps, num_given = sizes.threads // 32, len(passed) + len(program.outputs)
    text = (
        environment()
        .get_template("hosts/step_on_cuda.cuh.jinja")
        .render(
            name=_NAME,
            include=INCLUDE,
            functions=functions,
            entries=rows,
            asks=bool(ahead.asks),
            operands=operands,
            dims=passed.index("dims") if any(function.sizes for function in functions) else None,
            inputs=passed,
            outputs=program.outputs,
            held=held,
            shares=[range(warp, num_given, warps) for warp in range(min(warps, num_given))],
            pool_bytes=used,
            asks_for_pool=used > own,
            threads=sizes.threads,
            blocks=sizes.blocks,
            timeout_ns=(TIMEOUT_S if PEERS in program.inputs else TIMEOUT_SECONDS) * 10**9,
        )
    )
    name = f"step_{_digest(text.replace(_NAME, 'step').replace(INCLUDE, _prelude()))}"
    return StepText(name, text.replace(_NAME, name), passed, held, used if used > own else 0)


def _busy(functions: Sequence[_Function], rows: Sequence[_Row], asks: Mapping[int, int], function: int) -> int:
    """The most blocks that attend, without a condition on the context, while rows of a function are on their way."""
    begins = {launch: begin for begin, launch in asks.items() if rows[launch].function == function}
    between = {rows[at].function for launch, begin in begins.items() for at in range(begin, launch)}
    busy = [f for f in (functions[i] for i in between) if f.kernel.label == "attend"]
    return max((int(f.axes[0][:-1]) for f in busy if all(axis[0].isdigit() for axis in f.axes)), default=0)


@functools.cache
def _prelude() -> str:
    return files("mlxr.templates").joinpath("hosts/metal_on_cuda.cuh").read_text("utf-8")


def _digest(text: str) -> str:
    """Eight digits of the text's hash, which hosts also use in the names of cached builds."""
    return hashlib.sha256(f"{len(text)}:{text}".encode()).hexdigest()[:8]


def _reads_weights(launch: StepLaunch, weights: Container[str]) -> bool:
    """Whether a launch reads whole weights.

    Of experts, embeddings and adapters it reads only a few rows, which are not known before.
    """
    if launch.grid == (Extent(), Extent(), Extent()):
        return False
    ports = [port.name for port in launch.kernel.inputs]
    chooses = not {"experts", "logits", "adapter_ids"}.isdisjoint(ports)
    return any(
        place.argument in weights and (not chooses or ports[i] in SHARED_WEIGHTS)
        for i, place in enumerate(launch.reads)
    )


def _function(launch: StepLaunch, source: str, index: int, threads: int, pool: int) -> _Function:
    kernel, header, body = launch.kernel, header_of(source), body_of(source)
    if _TILES in body:  # where hosts put them, the threadgroups side by side would have the same ones
        raise NotOneKernelError(
            f"kernel {kernel.name} has tiles in threadgroup memory, which threadgroups side by side cannot have"
        )
    arrays = len(_ARRAY.findall(body))
    # Each array begins at a multiple of 16 bytes.
    near = _NEAR.search(body)
    size = -(-kernel.threadgroup_bytes // 16) * 16 + 16 * (arrays + bool(near)) if arrays else 0
    if kernel.threads % 32 or kernel.threads > threads or size > pool:
        raise NotOneKernelError(
            f"kernel {kernel.name} has threadgroups of {kernel.threads} threads and {size} bytes; a block of the step "
            f"has {threads} and {pool}"
        )
    groups = min(threads // kernel.threads, _MOST_GROUPS if kernel.threads > 32 else threads // 32)
    groups = min(groups, pool // size) if size else groups
    macros = tuple(dict.fromkeys(_DEFINE.findall(header + body)))
    axes = [(grid_axis(extent), f"grid_{axis}") for extent, axis in zip(launch.grid, "xyz", strict=True)]
    sizes = tuple(f"{name} = {text}" for text, name in axes if not text[0].isdigit())
    x, y, z = (text if text[0].isdigit() else name for text, name in axes)
    awaits = _AWAIT in body
    near_bytes = 16 * int(near[1]) if near and groups == 1 and not sizes else 0
    return _Function(
        f"{kernel.name}_{index}", kernel, sizes, (x, y, z), groups, size, awaits, near_bytes, header, body, macros
    )


def grid_axis(extent: Extent) -> str:
    """Threadgroups along an axis, as CUDA text: a number, or an expression in parentheses."""
    if extent.dim is None:
        return f"{extent.times}u"
    dim = f"mlxr_dims[{_DIMS.index(extent.dim)}]"
    plus = f" + {extent.plus}u" if extent.plus else ""
    return f"({extent.times}u * (({dim} + {extent.per - 1}u) / {extent.per}u){plus})"
