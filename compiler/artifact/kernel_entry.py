"""What the plan says of a generated kernel."""

from mlxr.compiler.artifact.chosen_geometry import ChosenGeometry
from mlxr.compiler.artifact.record import Record
from mlxr.compiler.formats.dtypes import DType


class KernelPort(Record):
    """A buffer parameter of a kernel."""

    name: str
    dtype: DType


class KernelEntry(Record):
    """A generated kernel: its file holds the complete Metal text.

    Attributes:
        chosen: its launch geometry; None of kernels that have none to choose.
    """

    name: str
    label: str
    file: str
    inputs: tuple[KernelPort, ...]
    outputs: tuple[KernelPort, ...]
    threads: int
    threadgroup_bytes: int
    chosen: ChosenGeometry | None = None
