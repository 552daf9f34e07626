"""Chooses the types of activations and cache for each target, where the spec leaves them open."""

from collections.abc import Sequence

from mlxr.compiler.artifact.chip import HalfType
from mlxr.compiler.artifact.target_types import Target, TargetTypes
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.spec.fields import AUTO
from mlxr.compiler.spec.model import ModelSpec

_ASKED = "the spec says so"


def target_types(spec: ModelSpec, half: HalfType | None, targets: Sequence[Target]) -> tuple[TargetTypes, ...]:
    """The types of each target, in order; see `metal_types` and `cpu_types`."""
    return tuple(metal_types(spec, half) if target == "metal" else cpu_types(spec) for target in targets)


def metal_types(spec: ModelSpec, half: HalfType | None) -> TargetTypes:
    """The types of GPU kernels: 16 bits, unless the spec names others or all weights are f32.

    Args:
        spec: the spec.
        half: the 16-bit type that the chip's table prefers; None: it has no preference.
    """
    activations, why = DType(spec.activation_dtype) if spec.activation_dtype != AUTO else None, _ASKED
    if activations is None:
        activations, why = _activations(spec, half)
    cache, cache_why = _cache(spec, activations, "as activations, which matrix instructions need")
    return TargetTypes(
        target="metal", activations=activations, cache=cache, activations_because=why, cache_because=cache_why
    )


def cpu_types(spec: ModelSpec) -> TargetTypes:
    """The types of the C program, whose activations are always f32."""
    only_f32 = _formats(spec) == {WeightFormat.F32}
    cache, why = _cache(
        spec, DType.F32 if only_f32 else DType.F16, "as the weights" if only_f32 else "half of f32's bytes"
    )
    return TargetTypes(
        target="cpu",
        activations=DType.F32,
        cache=cache,
        activations_because="a CPU is no slower with it",
        cache_because=why,
    )


def _cache(spec: ModelSpec, chosen: DType, why: str) -> tuple[DType, str]:
    return (chosen, why) if spec.cache.dtype == AUTO else (DType(spec.cache.dtype), _ASKED)


def _formats(spec: ModelSpec) -> set[WeightFormat]:
    return {spec.weights.of_tensor(name) for name in spec.matrix_shapes()}


def _activations(spec: ModelSpec, half: HalfType | None) -> tuple[DType, str]:
    formats = _formats(spec)
    if formats == {WeightFormat.F32}:
        return DType.F32, "all weights are f32"
    own = WeightFormat(spec.weights.default).declared_float
    # Gemma's embeddings are multiplied by the root of the hidden size: its residuals exceed what f16 can hold.
    if spec.model.embedding_scale > 1:
        return DType.BF16, "embeddings are scaled, by which activations exceed the range of f16"
    if own is DType.F16:
        return DType.F16, "the weights or their scales are f16"
    if half is not None and WeightFormat.BF16 not in formats:
        return DType(half.type), f"{half.because} ({half.origin})"
    return DType.BF16, "the weights or their scales are bf16" if own is DType.BF16 else "16 bits, with the range of f32"
