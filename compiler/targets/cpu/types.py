"""Chooses the types of activations and cache of the C program."""

from mlxr.compiler.artifact.program import TargetTypes
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.types import cache_type, matrix_formats


def cpu_types(spec: ModelSpec) -> TargetTypes:
    """The types of the C program, whose activations are always f32."""
    only_f32 = matrix_formats(spec) == {WeightFormat.F32}
    cache, why = cache_type(
        spec, DType.F32 if only_f32 else DType.F16, "as the weights" if only_f32 else "half of f32's bytes"
    )
    return TargetTypes(
        target="cpu",
        activations=DType.F32,
        cache=cache,
        activations_because="a CPU is no slower with it",
        cache_because=why,
    )
