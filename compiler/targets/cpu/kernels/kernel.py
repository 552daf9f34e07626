"""What a C kernel is to the rest: a frozen context, a template, parameters and scratch.

A context is a kernel's identity, as in `mlxr.compiler.targets.metal.kernels.kernel`: equal contexts are one function.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

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


@dataclass(frozen=True)
class Param:
    """A parameter of a kernel, after the worker and the batch.

    Attributes:
        name: its name in C.
        kind: `matrix` a weight's bytes, `vector` f32 weights, `input` and `output` activations,
            `indices` and `output_indices` activations of i32, `layer` a number.
    """

    name: str
    kind: ParamKind

    @property
    def declaration(self) -> str:
        """As C declares it."""
        return f"{_C_TYPES[self.kind]}{self.name}"


@dataclass(frozen=True)
class CpuKernel(ABC):
    """A function to be rendered. `label` is the readable part of its name."""

    label: str
    template: ClassVar[str]

    @property
    @abstractmethod
    def params(self) -> tuple[Param, ...]:
        """Parameters in order."""

    @property
    def declarations(self) -> str:
        """All parameters as C declares them."""
        return "".join(f", {param.declaration}" for param in self.params)

    @property
    def thread_bytes(self) -> int:
        """Scratch of each thread."""
        return 0

    @property
    def shared_bytes(self) -> int:
        """Scratch that the threads share."""
        return 0
