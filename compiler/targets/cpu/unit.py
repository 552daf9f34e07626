"""Renders the translation unit: headers, a C function for each kernel and each phase, and the API of the library."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import jinja2

from mlxr.compiler.artifact.c_library import CTensor
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.targets.cpu.format_headers import affine_definitions, format_headers
from mlxr.compiler.targets.cpu.kernel_parts.kernel import HANDOVER, LINKS, CpuHeader, CpuKernel
from mlxr.compiler.targets.environment import environment
from mlxr.compiler.targets.provenance import Provenance

# Headers that every program has. A kernel names further headers as its `helpers`.
_BASE = ("common.h", "simd.h", "likeliest.h", "math.h", "activations.h")
_PROJECTION = (
    "inputs.h",
    "float_rows.h",
    "gemm.h",
    "columns.h",
    "pairs.h",
    "pool.h",
    "projection.h",
    "experts.h",
    "rows.h",
)
_ATTENTION = ("cache.h", "attend.h", "attend_few.h")


@dataclass(frozen=True)
class Call:
    """A call of a kernel: its launch counter, its arguments as C text, its op, and whether that is a sum."""

    counter: int
    kernel: str
    arguments: tuple[str, ...]
    op: str
    needs_rows: bool
    is_sum: bool


@dataclass(frozen=True)
class Calls:
    """The calls of a phase, in order."""

    name: str
    calls: tuple[Call, ...]

    @property
    def parts(self) -> tuple[int, ...]:
        """The indices of the first call, and of those that come after a sum."""
        return (0, *(index for index, call in enumerate(self.calls[:-1], 1) if call.is_sum))


@dataclass(frozen=True)
class Unit:
    """The input from which the translation unit is rendered.

    Attributes:
        called: names and contexts of the functions that kernels call. A step may call some of them, too.
        kernels: names and contexts of all kernels that steps call, in the order of their launch counters.
        copy_blocks: name and context of the kernel that copies blocks; None if blocks are never shared.
        phases: the calls of each phase.
        tensors: the weights, in the order in which the runtime passes them.
        activation_bytes: memory of the buffers between calls.
        shared_bytes, thread_bytes: scratch memory that the threads share, and of each thread.
        vocab_size: columns of the logits.
        step_batches: see `Lowered`.
    """

    called: tuple[tuple[str, CpuKernel], ...]
    kernels: tuple[tuple[str, CpuKernel], ...]
    copy_blocks: tuple[str, CpuKernel] | None
    phases: tuple[Calls, ...]
    tensors: tuple[CTensor, ...]
    num_stores: int
    activation_bytes: int
    shared_bytes: int
    thread_bytes: int
    vocab_size: int
    step_batches: int

    @property
    def formats(self) -> frozenset[WeightFormat]:
        """Formats of its tensors."""
        return frozenset(tensor.format for tensor in self.tensors)

    @property
    def has_experts(self) -> bool:
        """Whether tensors have a matrix for each expert."""
        return any(tensor.matrices > 1 for tensor in self.tensors)

    @property
    def most_calls(self) -> int:
        """Calls of the phase that has most of them."""
        return max(len(phase.calls) for phase in self.phases)

    @property
    def packed(self) -> tuple[tuple[int, CTensor], ...]:
        """The tensors that the library packs, each with its index."""
        return tuple((index, t) for index, t in enumerate(self.tensors) if t.layout == "packed")


def headers(formats: Collection[WeightFormat]) -> tuple[str, ...]:
    """Headers of templates/cpu for these weight formats. Each comes after the headers that it needs."""
    return (*_BASE, *format_headers(formats), *_PROJECTION, *_ATTENTION)


def name_kernels(kernels: Sequence[CpuKernel]) -> dict[CpuKernel, str]:
    """A name for each kernel, and for each function that kernels call: its label and a hash of its text.

    Raises:
        PlanError: a template has a mistake.
    """
    names: dict[CpuKernel, str] = {}
    for kernel in (*(called for caller in kernels for called in caller.calls), *kernels):
        text = _function("kernel", kernel, names)
        names[kernel] = f"{kernel.label}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return names


def render_unit(unit: Unit, origin: Provenance) -> tuple[str, int]:
    """The translation unit, and its ABI number, which identifies the library to the runtime.

    Raises:
        PlanError: a template has a mistake, or the text is not ASCII.
    """
    functions = tuple(dict.fromkeys((*unit.called, *unit.kernels)))
    names = {kernel: name for name, kernel in unit.called}
    helpers = dict.fromkeys(helper for _, kernel in functions for helper in kernel.helpers)
    values: dict[str, object] = {
        "unit": unit,
        "origin": origin,
        "headers": (*headers(unit.formats), *(h.file for h in helpers if isinstance(h, CpuHeader))),
        "affine_formats": affine_definitions(unit.formats),
        "exchanges": LINKS in helpers,
        "hands_over": HANDOVER in helpers,
        "helpers": [_render(f"cpu/{h.template}", {"h": h}) for h in helpers if not isinstance(h, CpuHeader)],
        "functions": [(name if kernel.apart else "", _function(name, kernel, names)) for name, kernel in functions],
        "copy_function": _function(*unit.copy_blocks, names) if unit.copy_blocks else "",
    }
    draft = _render("cpu/model.c.jinja", values | {"abi": 0})
    # Without the first line, which names the model: models that say the same share a library.
    abi = int(hashlib.sha256(draft.partition("\n")[2].encode()).hexdigest()[:8], 16) >> 1
    text = _render("cpu/model.c.jinja", values | {"abi": abi})
    if not text.isascii():
        raise PlanError("the C program contains characters that are not ASCII")
    return text, abi


def _function(name: str, kernel: CpuKernel, names: Mapping[CpuKernel, str]) -> str:
    """The text of a kernel; `names` are those of the functions that it calls."""
    calls = [names[called] for called in kernel.calls]
    return _render(f"cpu/{kernel.template}", {"k": kernel, "name": name, "calls": calls})


def _render(template: str, values: dict[str, object]) -> str:
    try:
        return environment().get_template(template).render(values)
    except jinja2.TemplateError as error:
        where = f"{error.name}:{error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else template
        raise PlanError(f"template {where} cannot be rendered: {error.message}") from error
