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
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from importlib.resources import files

from mlxr.compiler.artifact.kernel_entry import KernelEntry, body_of, header_of
from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.artifact.parallel.peer_mailboxes import TIMEOUT_S
from mlxr.compiler.artifact.step_kernel_entry import INCLUDE, PEERS
from mlxr.compiler.schedule.geometry import StepKernelSizes
from mlxr.compiler.targets.environment import environment
from mlxr.compiler.targets.metal.decode_kernel.make_step_program import NotOneKernelError
from mlxr.compiler.targets.metal.decode_kernel.step_program import Grid, StepLaunch, StepProgram
from mlxr.compiler.targets.metal.kernel_parts.kernel import BLOCK_BYTES

TIMEOUT_SECONDS = 10
"""How long a block waits for the others before it stops the kernel, unless a rank may be late."""
SHARED_BYTES = 47 << 10
"""Shared memory of a block: CUDA's default limit, less what CUDA itself uses."""
_MOST_GROUPS = 15  # hardware has 16 barriers; one is the block's
_MOST_ARGUMENTS = 4000  # of 8 bytes; CUDA takes 32,764
_DEFINE = re.compile(r"^#define (?!MLXR_)(\w+)", re.MULTILINE)
_DIMS = ("tokens", "seqs", "rows", "tiles")
"""The numbers in the buffer `dims`, in order."""
_ARRAY = re.compile(r"\bMLXR_THREADGROUP\(")
_AWAIT = "MLXR_AWAIT_INPUTS()"
_COPY = "MLXR_COPY_AHEAD("
_TILES = "MLXR_TILES("
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
    """

    name: str
    kernel: KernelEntry
    sizes: tuple[str, ...]
    axes: tuple[str, str, str]
    groups: int
    group_bytes: int
    awaits: bool
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
    first = 0
    for launch in program.launches:
        index = numbers.setdefault((launch.kernel.name, launch.grid), len(numbers))
        if index == len(functions):
            functions.append(_function(launch, sources[launch.kernel.name], index, sizes.threads, pool))
        condition = 0 if launch.condition is None else launch.condition + 1
        rows.append(_Row(index, launch.waits, condition, first))
        first += len(launch.operands)
    used = max([8 * len(arguments), *(f.groups * f.group_bytes for f in functions)])
    warps, num_given = sizes.threads // 32, len(passed) + len(program.outputs)
    text = (
        environment()
        .get_template("hosts/step_on_cuda.cuh.jinja")
        .render(
            name=_NAME,
            include=INCLUDE,
            functions=functions,
            entries=rows,
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


@functools.cache
def _prelude() -> str:
    hosts = files("mlxr.templates").joinpath("hosts")
    return "".join(hosts.joinpath(f"{name}_on_cuda.cuh").read_text("utf-8") for name in ("metal", "clusters", "tiles"))


def _digest(text: str) -> str:
    """Eight digits of the text's hash, which hosts also use in the names of cached builds."""
    return hashlib.sha256(f"{len(text)}:{text}".encode()).hexdigest()[:8]


def _function(launch: StepLaunch, source: str, index: int, threads: int, pool: int) -> _Function:
    kernel, header, body = launch.kernel, header_of(source), body_of(source)
    if _TILES in body:  # where hosts put them, the threadgroups side by side would have the same ones
        raise NotOneKernelError(
            f"kernel {kernel.name} has tiles in threadgroup memory, which threadgroups side by side cannot have"
        )
    arrays = len(_ARRAY.findall(body))
    # Each array begins at a multiple of 16 bytes.
    size = -(-kernel.threadgroup_bytes // 16) * 16 + 16 * arrays if arrays else 0
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
    return _Function(f"{kernel.name}_{index}", kernel, sizes, (x, y, z), groups, size, awaits, header, body, macros)


def grid_axis(extent: Extent) -> str:
    """Threadgroups along an axis, as CUDA text: a number, or an expression in parentheses."""
    if extent.dim is None:
        return f"{extent.times}u"
    dim = f"mlxr_dims[{_DIMS.index(extent.dim)}]"
    plus = f" + {extent.plus}u" if extent.plus else ""
    return f"({extent.times}u * (({dim} + {extent.per - 1}u) / {extent.per}u){plus})"
