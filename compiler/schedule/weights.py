"""The weights that the phases bind, and the tensors of files that make them up."""

from collections.abc import Iterable, Mapping, Sequence

from mlxr.compiler.artifact.weight_plan import TensorSource, WeightPlan
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.ir.graph import OpGraph, Value
from mlxr.compiler.parallel.tensor_slice import WHOLE, TensorSlice, slice_source
from mlxr.compiler.schedule.recipes import recipes
from mlxr.compiler.spec.adapters import DOWN, UP
from mlxr.compiler.spec.model import ModelSpec


def plan_weights(
    spec: ModelSpec, source: OpGraph, graphs: Iterable[OpGraph], slices: Mapping[str, TensorSlice] | None = None
) -> tuple[WeightPlan, ...]:
    """The weights that any phase binds, each once, in program order.

    Args:
        spec: the spec.
        source: the source graph of the whole model, for the shapes of its tensors.
        graphs: the ordered graphs of the phases.
        slices: of a rank, its part of each tensor; None: it has all of them.

    Raises:
        PlanError: the phases disagree on a weight, or a part cannot be taken from files.
    """
    plans: dict[str, WeightPlan] = {}
    for value in (v for graph in graphs for v in graph.values if v.role == "weight"):
        parts = []
        for part in value.parts:
            # Adapters are not in the model's files: they come and go while the model runs.
            of_adapters = part.endswith((DOWN, UP))
            in_safetensors, in_gguf = ((), ()) if of_adapters else recipes(spec.model, part)
            whole = TensorSource(
                name=part,
                shape=_numbers(source.value(part).shape),
                safetensors=in_safetensors,
                gguf=in_gguf,
                format=_format_of(spec, part, value),
            )
            cut = slices[part] if slices is not None else WHOLE
            parts.append(slice_source(whole, cut.rows, cut.columns, cut.tiles))
        plan = WeightPlan(value.name, _numbers(value.shape), value.dtype, tuple(parts))
        if plans.setdefault(value.name, plan) != plan:
            raise PlanError(f"the phases disagree on weight {value.name!r}: {plans[value.name]} and {plan}")
    return tuple(plans.values())


def _format_of(spec: ModelSpec, part: str, value: Value) -> WeightFormat:
    return spec.weights.of_tensor(part) if len(value.shape) == 2 else WeightFormat(str(value.dtype))


def _numbers(shape: Sequence[int | str]) -> tuple[int, ...]:
    assert all(isinstance(d, int) for d in shape), "weights have no symbolic dims"
    return tuple(int(d) for d in shape)
