"""A launch whose kernel has no text and no name yet."""

from dataclasses import dataclass

from mlxr.compiler.artifact.chosen_geometry import ChosenGeometry
from mlxr.compiler.artifact.launch import ONE, Condition, Extent, Launch
from mlxr.compiler.schedule.kernel import Kernel


@dataclass(frozen=True)
class PendingLaunch:
    """A launch of any target, as lowering makes it; fields as in `Launch`, and the kernel's `chosen` geometry."""

    op: str
    kernel: Kernel
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    threadgroups: tuple[Extent, Extent, Extent] = (ONE, ONE, ONE)
    when: Condition | None = None
    layer: int | None = None
    mlx: tuple[Condition, ...] = ()
    mlx_inputs: tuple[tuple[str, str], ...] = ()
    feeds_mlx: bool = False
    chosen: ChosenGeometry | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """The buffers that it reads, as a kernel or as MLX ops."""
        return (*self.inputs, *(buffer for _, buffer in self.mlx_inputs))

    def named(self, kernel: str) -> Launch:
        """The launch, once its kernel has this name."""
        return Launch(
            op=self.op,
            kernel=kernel,
            layer=self.layer,
            inputs=self.inputs,
            outputs=self.outputs,
            threadgroups=self.threadgroups,
            when=self.when,
            mlx=self.mlx,
            mlx_inputs=self.mlx_inputs,
            feeds_mlx=self.feeds_mlx,
        )
