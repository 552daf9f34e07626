"""The epilogues of projections: one C function for each."""

from dataclasses import dataclass
from typing import Literal

from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuHelper
from mlxr.compiler.targets.environment import float_literal
from mlxr.compiler.targets.epilogue import Epilogue


@dataclass(frozen=True)
class FinishRows(CpuHelper):
    """The function that turns rows of sums into outputs.

    Attributes:
        epilogue: its steps.
        choices: how it stores rows of a mixture of experts: `apart`: each in a row of its own; `weighed`: likewise, of
            inputs times the expert's weight; `added`: each is added to its token's row; `summed`: likewise, times its
            weight. None: there are no experts.
    """

    template = "finish.jinja"
    epilogue: Epilogue
    choices: Literal["apart", "weighed", "added", "summed"] | None = None

    @property
    def _numbers(self) -> dict[str, float]:
        """The numbers other than the defaults, by their names in C."""
        e = self.epilogue
        scales = {"out_scale": e.out_scale, "residual_scale": e.residual_scale}
        bounds = {"limit": e.limit, "out_cap": e.out_cap, "out_limit": e.out_limit}
        return {name: v for name, v in scales.items() if v != 1} | {name: v for name, v in bounds.items() if v}

    @property
    def name(self) -> str:
        """The steps, in order."""
        e, kind = self.epilogue, self.epilogue.activation
        activation = f"ungated_{kind}" if kind and not e.gated else kind
        steps = (
            "bias" if e.bias else None,
            activation,
            "gate" if e.gate else None,
            "times" if e.times else None,
            self.choices,
        )
        # A number in a name: 0.5 -> 0p5, -1e-05 -> m1em05.
        texts = {
            name: repr(v).replace(".", "p").replace("-", "m").replace("+", "") for name, v in self._numbers.items()
        }
        numbers = [f"{name}_{text}" for name, text in texts.items()]
        last = "residual" if e.residual else None
        return "_".join(("finish", *(step for step in (*steps, *numbers, last) if step)))

    @property
    def steps(self) -> str:
        """The steps as fields of an `mlxr_epilogue`."""
        e = self.epilogue
        flags = {
            "bias": e.bias is not None,
            "gated": e.gated,
            "gate": e.gate is not None,
            "times": e.times is not None,
            "places": self.choices is not None,
            "factors": self.choices == "summed",
            "input_factors": self.choices == "weighed",
            "residual": e.residual,
        }
        fields = [f".activation = MLXR_{e.activation.upper()}"] if e.activation else []
        fields += [f".{name} = 1" for name, is_set in flags.items() if is_set]
        fields += [f".{name} = {float_literal(v)}" for name, v in self._numbers.items()]
        return ", ".join(fields) or "0"
