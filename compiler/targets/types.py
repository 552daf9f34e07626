"""What the targets share in choosing element types that a spec leaves open."""

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.spec.fields import AUTO
from mlxr.compiler.spec.model import ModelSpec

ASKED = "the spec says so"
"""The reason of a type that was not left open."""


def cache_type(spec: ModelSpec, chosen: DType, why: str) -> tuple[DType, str]:
    """The type of the cache, and the reason: what the spec says, or else what the target chose."""
    return (chosen, why) if spec.cache.dtype == AUTO else (DType(spec.cache.dtype), ASKED)


def matrix_formats(spec: ModelSpec) -> set[WeightFormat]:
    """The formats of all matrices."""
    return {spec.weights.of_tensor(name) for name in spec.matrix_shapes()}
