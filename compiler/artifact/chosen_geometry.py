"""The launch geometry that was chosen for a kernel, with the reasons."""

from collections.abc import Collection, Mapping

from mlxr.compiler.artifact.record import Record


class ChosenGeometry(Record):
    """What was chosen for a kernel.

    Attributes:
        site: the launches it is for, as rules name them.
        sizes: the sizes of `Geometry` that its kind of kernel depends on.
        why: the reasons of those that are not the default.
    """

    site: str
    sizes: Mapping[str, int]
    why: Mapping[str, str] = {}

    def without(self, unused: Collection[str]) -> "ChosenGeometry":
        """The same but for sizes that mean nothing to the kernel."""
        sizes = {name: size for name, size in self.sizes.items() if name not in unused}
        return self.model_copy(update={"sizes": sizes, "why": {n: why for n, why in self.why.items() if n in sizes}})
