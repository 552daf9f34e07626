"""Chooses the element types of GPU kernels."""

from mlxr.compiler.artifact.chip import HalfType
from mlxr.compiler.artifact.program import TargetTypes
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.spec.fields import AUTO
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.target import ASKED, cache_type, matrix_formats


def metal_types(spec: ModelSpec, half: HalfType | None) -> TargetTypes:
    """The types of GPU kernels: 16-bit types, unless the spec names others or all weights are f32.

    Args:
        spec: the spec.
        half: the 16-bit type that the chip prefers; None: it has no preference.
    """
    activations, why = DType(spec.activation_dtype) if spec.activation_dtype != AUTO else None, ASKED
    if activations is None:
        activations, why = _activations(spec, half)
    cache, cache_why = cache_type(spec, activations, "as activations, which matrix instructions need")
    return TargetTypes(
        target="metal", activations=activations, cache=cache, activations_because=why, cache_because=cache_why
    )


def _activations(spec: ModelSpec, half: HalfType | None) -> tuple[DType, str]:
    formats = matrix_formats(spec)
    if formats == {WeightFormat.F32}:
        return DType.F32, "all weights are f32"
    own = WeightFormat(spec.weights.default).declared_float
    # Gemma's embeddings are multiplied by the root of the hidden size, so its residuals exceed the range of f16.
    if spec.model.embedding_scale > 1:
        return DType.BF16, "embeddings are scaled, by which activations exceed the range of f16"
    if own is DType.F16:
        return DType.F16, "the weights or their scales are f16"
    if half is not None and WeightFormat.BF16 not in formats:
        return DType(half.type), f"{half.because} ({half.origin})"
    return DType.BF16, "the weights or their scales are bf16" if own is DType.BF16 else "16 bits, with the range of f32"
