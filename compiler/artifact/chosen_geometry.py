"""The launch geometry that was chosen for a kernel, with the reasons."""

from collections.abc import Mapping

from mlxr.compiler.spec.record import Record


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
