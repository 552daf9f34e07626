"""The weights that the phases bind, and the tensors of files that make them up."""

from collections.abc import Iterable, Sequence

from mlxr.compiler.artifact.weight_plan import TensorSource, WeightPlan
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.ir.graph import OpGraph, Value
from mlxr.compiler.schedule.recipes import recipes
from mlxr.compiler.spec.model import ModelSpec


def plan_weights(spec: ModelSpec, source: OpGraph, graphs: Iterable[OpGraph]) -> tuple[WeightPlan, ...]:
    """The weights that any phase binds, each once, in program order."""
    plans: dict[str, WeightPlan] = {}
    for value in (v for graph in graphs for v in graph.values if v.role == "weight"):
        parts = []
        for part in value.parts:
            in_safetensors, in_gguf = recipes(spec.model, part)
            parts.append(
                TensorSource(
                    name=part,
                    shape=_numbers(source.value(part).shape),
                    safetensors=in_safetensors,
                    gguf=in_gguf,
                    format=_format_of(spec, part, value),
                )
            )
        plan = WeightPlan(value.name, _numbers(value.shape), value.dtype, tuple(parts))
        if plans.setdefault(value.name, plan) != plan:
            raise PlanError(f"the phases disagree on weight {value.name!r}: {plans[value.name]} and {plan}")
    return tuple(plans.values())


def _format_of(spec: ModelSpec, part: str, value: Value) -> WeightFormat:
    return spec.weights.of_tensor(part) if len(value.shape) == 2 else WeightFormat(str(value.dtype))


def _numbers(shape: Sequence[int | str]) -> tuple[int, ...]:
    assert all(isinstance(d, int) for d in shape), "weights have no symbolic dims"
    return tuple(int(d) for d in shape)
