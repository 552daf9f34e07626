"""The choice of element types that a spec leaves open, as far as targets share it."""

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.spec.fields import AUTO
from mlxr.compiler.spec.model import ModelSpec

ASKED = "the spec says so"
"""The reason for a type that the spec states."""


def cache_type(spec: ModelSpec, chosen: DType, why: str) -> tuple[DType, str]:
    """The type of the cache and its reason: those of the spec if it states a type, or else those of the target."""
    return (chosen, why) if spec.cache.dtype == AUTO else (DType(spec.cache.dtype), ASKED)


def matrix_formats(spec: ModelSpec) -> set[WeightFormat]:
    """The formats of all matrices."""
    return {spec.weights.of_tensor(name) for name in spec.matrix_shapes()}
