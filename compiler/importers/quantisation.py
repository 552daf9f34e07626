"""Folders of quantised weights: which tensors belong together, and in which format they are.

Two ways are known: mlx-lm's `quantization` (affine and mxfp4, with other settings for single layers), and MXFP4 experts
as Hugging Face has them. Any other is refused by name.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from mlxr.compiler.errors import SpecError
from mlxr.compiler.formats.weight_format import WeightFormat, affine_format
from mlxr.compiler.importers.facts import Facts
from mlxr.compiler.importers.tensors import TensorFact
from mlxr.compiler.spec.explain import show

_SUPPORTED = "mlx-lm's affine (2, 3, 4, 5, 6 or 8 bits, groups of 32, 64 or 128) and mxfp4, and Hugging Face's mxfp4"
_ENDINGS = ((".weight", ".scales", ".biases"), ("_blocks", "_scales", "_biases"))
_SCALES = {"F16": "f16", "BF16": "bf16", "F32": "f32"}
_SETTINGS = ("bits", "group_size", "mode")
_FP4_GROUP = 32
_USUAL_BITS, _USUAL_GROUP = 4, 64
"""What MLX takes where the settings of an affine matrix say null, or nothing: so do mlx-lm's mixed recipes."""


def check_quantisation(facts: Facts) -> None:
    """Refuses ways of quantisation that are not known, and reads the settings of the others.

    Raises:
        SpecError: naming the way.
    """
    for key in ("quantization", "quantization_config"):
        settings = facts.get(key)
        if settings is None:
            continue
        if not isinstance(settings, dict):
            raise facts.refuse(key, settings, "a section")
        method = settings.get("quant_method", "mlx" if {"bits", "group_size"} <= settings.keys() else None)
        if method not in ("mlx", "mxfp4"):
            raise SpecError(
                f"{facts.source}: {key}: quantised by {show(method)}, which is not supported; supported: {_SUPPORTED}. "
                "Use the model's GGUF file, or its f16 or bf16 folder"
            )
        for where, part in {key: settings, **_layers(settings)}.items():
            mode = part.get("mode", "affine")
            if method == "mlx" and mode not in ("affine", "mxfp4"):
                raise SpecError(
                    f"{facts.source}: {where[:100]!a}: mode {show(mode)} is not supported; supported: {_SUPPORTED}"
                )


def _layers(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {str(name): value for name, value in settings.items() if isinstance(value, dict)}


def quantised_tensors(facts: Facts, tensors: Mapping[str, TensorFact]) -> dict[str, TensorFact]:
    """The tensors with those of one quantised matrix brought together, under the name of its numbers.

    Its shape is then that of the matrix, and its type the name of a format.

    Raises:
        SpecError: shapes and settings contradict each other, or mean a format that is not supported.
    """
    found = dict(tensors)
    settings = facts.get("quantization") or facts.get("quantization_config") or {}
    layers = _layers(settings)
    for first, second, third in _ENDINGS:
        for name in [name for name in tensors if name.endswith(second)]:
            stem = name.removesuffix(second)
            if (numbers := found.get(stem + first)) is None:
                continue
            planes = _Planes(stem + first, numbers, found.pop(name), found.pop(stem + third, None))
            found[stem + first] = planes.matrix(facts.source, layers.get(stem, settings))
    return found


class _Planes(NamedTuple):
    """The tensors of one quantised matrix."""

    name: str
    numbers: TensorFact
    scales: TensorFact
    biases: TensorFact | None

    def matrix(self, source: str, settings: Mapping[str, Any]) -> TensorFact:
        """Shape and format of the matrix."""
        numbers, scales, biases = self.numbers, self.scales, self.biases
        # Hugging Face has the 16 bytes of a block as a dimension of their own.
        outer = len(scales.shape) - 1
        word_bits = {"U32": 32, "U8": 8}.get(numbers.type, 0)
        row_bits = word_bits * math.prod(numbers.shape[outer:])
        groups = scales.shape[-1] if scales.shape else 0
        if outer < 0 or numbers.shape[:outer] != scales.shape[:-1] or not row_bits or not groups or row_bits % groups:
            raise self._wrong(source, settings)
        if biases is None:
            if scales.type != "U8" or row_bits != 4 * _FP4_GROUP * groups:
                raise self._wrong(source, settings)
            return TensorFact((*scales.shape[:-1], groups * _FP4_GROUP), str(WeightFormat.MXFP4_MLX))
        bits, group = (settings.get(key) for key in ("bits", "group_size"))
        bits, group = _USUAL_BITS if bits is None else bits, _USUAL_GROUP if group is None else group
        scale = _SCALES.get(scales.type)
        held = affine_format(bits, group, scale) if isinstance(bits, int) and isinstance(group, int) and scale else None
        affine = held.affine if held is not None else None
        if affine is None or affine.bits * affine.group * groups != row_bits:
            raise self._wrong(source, settings)
        if (biases.shape, biases.type) != (scales.shape, scales.type):
            raise self._wrong(source, settings)
        return TensorFact((*scales.shape[:-1], groups * affine.group), str(held))

    def _wrong(self, source: str, settings: Mapping[str, Any]) -> SpecError:
        def told(fact: TensorFact | None) -> str:
            return f"{list(fact.shape)} {fact.type[:20]}" if fact else "none"

        said = ", ".join(f"{key} {show(settings[key])}" for key in _SETTINGS if key in settings) or "nothing"
        return SpecError(
            f"{source}: {self.name[:100]!a} has numbers {told(self.numbers)}, scales {told(self.scales)} and biases "
            f"{told(self.biases)}, and its settings are {said}: no quantisation that is supported; supported: "
            f"{_SUPPORTED}"
        )
