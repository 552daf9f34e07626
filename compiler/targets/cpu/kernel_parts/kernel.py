"""The base of C kernels: a frozen context with a template, parameters and scratch, and the helpers that it uses.

Equal contexts are one C function; see `mlxr.compiler.schedule.kernel`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.kernel import Kernel, Port


@dataclass(frozen=True)
class CpuHelper(ABC):
    """C text that appears once in a program, before its kernels. Its template reads this object as `h`."""

    @property
    @abstractmethod
    def template(self) -> str:
        """Its file under templates/cpu."""


@dataclass(frozen=True)
class CpuHeader(CpuHelper):
    """A C header that only some kernels use. `unit.py` lists the headers that every program has."""

    file: str

    @property
    def template(self) -> str:
        """The file itself."""
        return self.file


LINKS = CpuHeader("links.h")
"""How ranks exchange rows; in the program of one of several."""

HANDOVER = CpuHeader("handover.h")
"""How the program and a card take turns; where it has the experts of a model that the card runs."""

ADAPTERS = CpuHeader("adapters.h")
"""Which adapter each token uses; in programs with adapters."""

ParamKind = Literal["matrix", "vector", "input", "output", "indices", "output_indices", "layer"]
OUTPUTS: tuple[ParamKind, ...] = ("output", "output_indices")
"""Kinds of parameters that a kernel writes."""
_C_TYPES: dict[ParamKind, str] = {
    "matrix": "const uint8_t *",
    "vector": "const float *",
    "input": "const float *",
    "output": "float *",
    "indices": "const int32_t *",
    "output_indices": "int32_t *",
    "layer": "int ",
}
_DTYPES: dict[ParamKind, DType] = {
    "matrix": DType.U8,
    "vector": DType.F32,
    "input": DType.F32,
    "output": DType.F32,
    "indices": DType.I32,
    "output_indices": DType.I32,
}


@dataclass(frozen=True)
class Param:
    """A parameter of a kernel. Every kernel has the worker and the batch before its own parameters.

    Attributes:
        name: its name in C.
        kind: `matrix`: bytes of a weight; `vector`: f32 weights; `input`, `output`: f32 activations; `indices`,
            `output_indices`: i32 activations; `layer`: the number of the layer.
    """

    name: str
    kind: ParamKind

    @property
    def declaration(self) -> str:
        """Its declaration in C."""
        return f"{_C_TYPES[self.kind]}{self.name}"


@dataclass(frozen=True)
class CpuKernel(Kernel):
    """A C function that all threads call. Its template reads this object as `k`."""

    @property
    @abstractmethod
    def params(self) -> tuple[Param, ...]:
        """Parameters in order."""

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The parameters that it reads; the layer is not a buffer."""
        read = (param for param in self.params if param.kind not in OUTPUTS and param.kind != "layer")
        return tuple((param.name, _DTYPES[param.kind]) for param in read)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The parameters that it writes."""
        return tuple((param.name, _DTYPES[param.kind]) for param in self.params if param.kind in OUTPUTS)

    @property
    def declarations(self) -> str:
        """The declarations of all parameters in C."""
        return "".join(f", {param.declaration}" for param in self.params)

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """The parts that the program needs before its kernels because this kernel uses them."""
        return ()

    @property
    def calls(self) -> "tuple[CpuKernel, ...]":
        """The functions that it calls, which the program has besides; see `CpuLatentDecode`."""
        return ()

    @property
    def apart(self) -> bool:
        """Whether it compiles so slowly that hosts may compile it separately, in parallel with the rest of the program.

        Its function then stands between two lines that say so, and uses nothing but the headers, none of them a weight
        format's, and no helper that is not a header.
        """
        return False

    @property
    def thread_bytes(self) -> int:
        """Bytes of scratch of each thread."""
        return 0

    @property
    def shared_bytes(self) -> int:
        """Bytes of scratch that the threads share."""
        return 0
