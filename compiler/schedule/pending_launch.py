"""A launch whose kernel has no text and no name yet."""

from collections.abc import Mapping
from dataclasses import dataclass

from mlxr.compiler.artifact.kernel_entry import ChosenGeometry
from mlxr.compiler.artifact.launch import ONE, Condition, Extent, KernelCall, Launch
from mlxr.compiler.artifact.library_call import LibraryCall
from mlxr.compiler.schedule.kernel import Kernel


@dataclass(frozen=True)
class PendingLaunch:
    """A launch of any target, before its kernel is rendered.

    Attributes:
        body: the kernel that it launches, or the MLX function that it calls.
        threadgroups: the kernel's grid.
        chosen: the kernel's geometry.
        place: the number that the kernel gets as its layer's; see `Lowering.place_of`.
        op, inputs, outputs, when, layer, yields, needs_library: see `Launch`.
    """

    op: str
    body: Kernel | LibraryCall
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    threadgroups: tuple[Extent, Extent, Extent] = (ONE, ONE, ONE)
    when: Condition | None = None
    layer: int | None = None
    yields: Condition | None = None
    needs_library: bool = False
    chosen: ChosenGeometry | None = None
    place: int | None = None

    def named(self, names: Mapping[Kernel, str]) -> Launch:
        """The launch, once its kernel has a name."""
        body: KernelCall | LibraryCall
        if isinstance(self.body, Kernel):
            body = KernelCall(kernel=names[self.body], threadgroups=self.threadgroups)
        else:
            body = self.body
        return Launch(
            op=self.op,
            layer=self.layer,
            body=body,
            inputs=self.inputs,
            outputs=self.outputs,
            when=self.when,
            yields=self.yields,
            needs_library=self.needs_library,
        )
