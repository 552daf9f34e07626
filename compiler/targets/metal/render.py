"""Renders kernel contexts into Metal text: the standalone file, and the header and body that MLX takes."""

import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import jinja2

from mlxr.compiler.artifact.kernel_entry import body_of, header_of
from mlxr.compiler.errors import PlanError
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.environment import environment
from mlxr.compiler.targets.metal.kernel_parts.kernel import PART_ARRAYS, MetalKernel
from mlxr.compiler.targets.provenance import Provenance

# The parameters that MLX appends to a signature if the source contains their names, in MLX's order.
_ATTRIBUTES = (
    ("uint", "dispatch_quadgroups_per_threadgroup"),
    ("uint", "dispatch_simdgroups_per_threadgroup"),
    ("uint3", "dispatch_threads_per_threadgroup"),
    ("uint3", "grid_origin"),
    ("uint3", "grid_size"),
    ("uint", "quadgroup_index_in_threadgroup"),
    ("uint", "quadgroups_per_threadgroup"),
    ("uint", "simdgroup_index_in_threadgroup"),
    ("uint", "simdgroups_per_threadgroup"),
    ("uint", "thread_execution_width"),
    ("uint", "thread_index_in_quadgroup"),
    ("uint", "thread_index_in_simdgroup"),
    ("uint", "thread_index_in_threadgroup"),
    ("uint3", "thread_position_in_grid"),
    ("uint3", "thread_position_in_threadgroup"),
    ("uint3", "threadgroup_position_in_grid"),
    ("uint3", "threadgroups_per_grid"),
    ("uint3", "threads_per_grid"),
    ("uint", "threads_per_simdgroup"),
    ("uint3", "threads_per_threadgroup"),
)

_END_OF_FRAME = "#endif\n"
"""The last line of what the frame of a kernel puts into its header."""
_NAMES_OF_PARTS = {"MLXR_THREADGROUP(": "MLXR_PART_ARRAY(", "threadgroup_position_in_grid": "mlxr_place"}
"""Names in a kernel's text, and what they are where it is part of another one's."""


_LATER = ("name", "version", "spec_name", "spec_hash")
"""What a text says that does not follow from its kernel."""
_OPEN = re.compile(f"<<({'|'.join(_LATER)})>>")


@dataclass(frozen=True)
class KernelSource:
    """A rendered kernel: a complete Metal file."""

    name: str
    text: str


@dataclass(frozen=True)
class _Part:
    """The sections of a kernel's text that is part of another one's, which gives it memory and a place in the grid."""

    doc: str
    header: str
    body: str


@dataclass(frozen=True)
class _Parameter:
    name: str
    dtype: object


def render(kernel: MetalKernel, origin: Provenance) -> KernelSource:
    """Renders a kernel; its name ends in a hash of its code, so that no cache can confuse it with another kernel.

    Raises:
        PlanError: its template has a mistake, or it would need more threadgroup memory than there is or 1024 threads.
    """
    if kernel.threadgroup_bytes > kernel.most_bytes or kernel.threads > 1024:
        raise PlanError(
            f"kernel {kernel.label} needs {kernel.threadgroup_bytes} bytes of threadgroup memory and {kernel.threads} "
            f"threads; a threadgroup has {kernel.most_bytes} bytes and 1024 threads"
        )
    try:
        return _render(kernel, origin)
    except jinja2.TemplateError as error:
        where = f"{error.name}:{error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else kernel.template
        raise PlanError(f"template {where} cannot be rendered: {error.message}") from error


@functools.lru_cache(maxsize=1024)  # tuning, and plans of several targets, ask for the same kernels again
def _render(kernel: MetalKernel, origin: Provenance) -> KernelSource:
    draft = _draft(kernel)
    body = body_of(draft)
    code = repr((kernel.inputs, kernel.outputs, kernel.threads, header_of(draft), body))
    name = f"{kernel.label}_{hashlib.sha256(code.encode()).hexdigest()[:8]}"
    own = {"name": name, "version": origin.version, "spec_name": origin.spec_name, "spec_hash": origin.spec_hash}
    text = draft.replace(_lines(_ATTRIBUTES), _lines([pair for pair in _ATTRIBUTES if pair[1] in body]), 1)
    text = _OPEN.sub(lambda found: own[found[1]], text)
    if not text.isascii():
        raise PlanError(f"kernel {name} contains characters that are not ASCII")
    return KernelSource(name, text)


@functools.lru_cache(maxsize=1024)  # models of a kind have kernels in common
def _draft(kernel: MetalKernel) -> str:
    """A kernel's text with every attribute, without its name and its origin, which are put in afterwards."""
    template = environment().get_template(f"metal/{kernel.template}")
    return template.render(
        {name: f"<<{name}>>" for name in _LATER}
        | {
            "k": kernel,
            "template": kernel.template,
            "inputs": _parameters(kernel.inputs),
            "outputs": _parameters(kernel.outputs),
            "attributes": _lines(_ATTRIBUTES),
            "parts": [_part(_draft(part)) for part in kernel.inlined],
        }
    )


def _part(text: str) -> _Part:
    """The sections of a complete Metal file, with the names that a part has for its memory and its place."""
    header, body = header_of(text).partition(_END_OF_FRAME)[2], body_of(text)
    for name, own in _NAMES_OF_PARTS.items():
        header, body = header.replace(name, own), body.replace(name, own)
    assert body.count(_NAMES_OF_PARTS["MLXR_THREADGROUP("]) <= PART_ARRAYS, "its memory is reckoned with so many arrays"
    return _Part(text.split("\n", 2)[2].partition("#include")[0], header, body)


def _parameters(ports: tuple[Port, ...]) -> list[_Parameter]:
    return [_Parameter(name, dtype) for name, dtype in ports]


def _lines(attributes: Sequence[tuple[str, str]]) -> str:
    """The last lines of a signature."""
    return ",\n".join(f"  {kind} {name} [[{name}]]" for kind, name in attributes)
