"""The sum of the results of a token's experts."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.epilogue import Epilogue
from mlxr.compiler.targets.metal.kernel_parts.kernel import MetalKernel


@dataclass(frozen=True)
class ExpertSumKernel(MetalKernel):
    """The sum over the choices of a token, and the residual.

    Attributes:
        width: columns of a result.
        top_k: experts of a token.
        skips: whether a choice may be -1, an expert of another rank.
        activation: element type of the results.
        epilogue: the steps after the sum: the residual and its scale.
    """

    template = "expert_sum.metal.jinja"
    width: int
    top_k: int
    skips: bool
    activation: DType
    epilogue: Epilogue

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The results, the choices if some have none, and the residual."""
        choices: tuple[Port, ...] = (("experts", DType.I32),) if self.skips else ()
        return (("x", self.activation), *choices, *self.epilogue.ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The sum."""
        return (("out", self.epilogue.out),)

    @property
    def threads(self) -> int:
        """A thread for each of so many columns."""
        return 256

    @property
    def threadgroups(self) -> int:
        """Threadgroups of a token."""
        return -(-self.width // self.threads)
