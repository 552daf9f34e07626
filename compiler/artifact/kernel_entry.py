"""The plan's entry for a generated kernel, its launch geometry, and the sections of its Metal file."""

from collections.abc import Mapping

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.spec.record import Record

# Marks in a complete Metal file, of which MLX's `metal_kernel` takes two sections.
_HEADER = "// ---- header\n"
_KERNEL = "// ---- kernel\n"
_BODY = ") {\n"


class ChosenGeometry(Record):
    """The sizes that were chosen for a kernel.

    Attributes:
        site: the launches that they are for, in the notation of geometry rules.
        sizes: the sizes that this kind of kernel depends on, by flat name (`matvec_outputs`).
        why: the reasons for the sizes that differ from the defaults.
    """

    site: str
    sizes: Mapping[str, int]
    why: Mapping[str, str] = {}


class KernelPort(Record):
    """A buffer parameter of a kernel."""

    name: str
    dtype: DType


class KernelEntry(Record):
    """A generated kernel.

    Attributes:
        name: its unique name: its label and a hash of its text.
        label: its purpose, for people.
        file: the source that holds it; target metal has one file per kernel.
        inputs, outputs: its buffer parameters, in order.
        threads: threads of a threadgroup; 0 if the host chooses how many threads run it.
        threadgroup_bytes: memory that the threads of a threadgroup share.
        cluster: neighbouring threadgroups that read each other's memory, where a launch can ask for that.
        chosen: its launch geometry; None if the kernel has no sizes to choose.
    """

    name: str
    label: str
    file: str
    inputs: tuple[KernelPort, ...]
    outputs: tuple[KernelPort, ...]
    threads: int = 0
    threadgroup_bytes: int = 0
    cluster: int = 1
    chosen: ChosenGeometry | None = None


def header_of(text: str) -> str:
    """The text between the includes and the kernel of a Metal file."""
    return text[text.index(_HEADER) + len(_HEADER) : text.index(_KERNEL)]


def body_of(text: str) -> str:
    """The text between the signature and the last brace of the kernel in a Metal file."""
    start = text.index(_BODY, text.index(_KERNEL)) + len(_BODY)
    return text[start : text.rindex("}")]
