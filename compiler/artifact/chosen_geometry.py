"""The launch geometry that was chosen for a kernel, with the reasons."""

from collections.abc import Mapping

from mlxr.compiler.spec.record import Record


class ChosenGeometry(Record):
    """What was chosen for a kernel.

    Attributes:
        site: the launches it is for, as rules name them.
        sizes: the sizes that its kind of kernel depends on, by flat name (`matvec_outputs`).
        why: the reasons of those that are not the default.
    """

    site: str
    sizes: Mapping[str, int]
    why: Mapping[str, str] = {}
