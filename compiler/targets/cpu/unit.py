"""Renders the translation unit: headers, one C function per kernel, two programs, and the library's API."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import jinja2

from mlxr.compiler.artifact.c_library import CTensor
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.targets.cpu.format_headers import affine_definitions, format_headers
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel
from mlxr.compiler.targets.environment import environment
from mlxr.compiler.targets.provenance import Provenance

_BASE = ("common.h", "simd.h", "math.h", "activations.h")
_PROJECTION = ("inputs.h", "float_rows.h", "gemm.h", "columns.h", "pool.h", "projection.h", "experts.h", "rows.h")
_ATTENTION = ("cache.h", "attend.h")


@dataclass(frozen=True)
class Call:
    """A call of a kernel: its launch counter, its arguments as C text, and the op that it computes."""

    counter: int
    kernel: str
    arguments: tuple[str, ...]
    op: str
    needs_rows: bool


@dataclass(frozen=True)
class Calls:
    """The calls of a phase, in order."""

    name: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Unit:
    """Everything that the translation unit is rendered from. Kernels come with their names."""

    kernels: tuple[tuple[str, CpuKernel], ...]
    copy_blocks: tuple[str, CpuKernel] | None
    programs: tuple[Calls, ...]
    tensors: tuple[CTensor, ...]
    activation_bytes: int
    shared_bytes: int
    thread_bytes: int
    vocab_size: int

    @property
    def formats(self) -> frozenset[WeightFormat]:
        """Of its tensors."""
        return frozenset(tensor.format for tensor in self.tensors)

    @property
    def packed(self) -> tuple[tuple[int, CTensor], ...]:
        """The tensors that the library packs, with their indices."""
        return tuple((index, t) for index, t in enumerate(self.tensors) if t.layout == "packed")


def headers(formats: Collection[WeightFormat]) -> tuple[str, ...]:
    """The headers of templates/cpu in the order in which they build on each other, without those of other formats."""
    return (*_BASE, *format_headers(formats), *_PROJECTION, *_ATTENTION)


def name_kernels(kernels: Sequence[CpuKernel]) -> dict[CpuKernel, str]:
    """A name for each kernel: its label and a hash of its text.

    Raises:
        PlanError: a template has a mistake.
    """
    names = {}
    for kernel in kernels:
        text = _function("kernel", kernel)
        names[kernel] = f"{kernel.label}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return names


def render_unit(unit: Unit, origin: Provenance) -> tuple[str, int]:
    """The translation unit, and the number that tells its library from others.

    Raises:
        PlanError: a template has a mistake, or the text is not ASCII.
    """
    helpers = dict.fromkeys(helper for _, kernel in unit.kernels for helper in kernel.helpers)
    values: dict[str, object] = {
        "unit": unit,
        "origin": origin,
        "headers": headers(unit.formats),
        "affine_formats": affine_definitions(unit.formats),
        "helpers": [_render(f"cpu/{helper.template}", {"h": helper}) for helper in helpers],
        "functions": [_function(name, kernel) for name, kernel in unit.kernels],
        "copy_function": _function(*unit.copy_blocks) if unit.copy_blocks else "",
    }
    draft = _render("cpu/model.c.jinja", values | {"abi": 0})
    abi = int(hashlib.sha256(draft.encode()).hexdigest()[:8], 16) >> 1
    text = _render("cpu/model.c.jinja", values | {"abi": abi})
    if not text.isascii():
        raise PlanError("the C program holds characters that are not ASCII")
    return text, abi


def _function(name: str, kernel: CpuKernel) -> str:
    return _render(f"cpu/{kernel.template}", {"k": kernel, "name": name})


def _render(template: str, values: dict[str, object]) -> str:
    try:
        return environment().get_template(template).render(values)
    except jinja2.TemplateError as error:
        where = f"{error.name}:{error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else template
        raise PlanError(f"template {where} cannot be rendered: {error.message}") from error
