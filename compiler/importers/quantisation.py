"""Folders of quantised weights: which tensors belong together, and which format they have.

Four kinds are supported: mlx-lm's `quantization`, in the modes that formats name (`WeightFormat.mlx_mode`) and with
different settings for single layers; Hugging Face's MXFP4 experts; packed integers (llm-compressor's, AWQ's, GPTQ's),
which are read as an affine format; and floats of 8 or 4 bits, which are read as bf16, as those of mlx-lm's other modes
are. Any other method is refused by name.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mlxr.compiler.errors import SpecError
from mlxr.compiler.formats.file_keys import QUANTISATION
from mlxr.compiler.formats.stored_planes import PLANE_ENDINGS, integer_format, plane_format, plane_names
from mlxr.compiler.formats.tensor_parts import text_name
from mlxr.compiler.formats.weight_format import AFFINE_BITS, AFFINE_GROUPS, WeightFormat
from mlxr.compiler.importers.facts import Facts
from mlxr.compiler.importers.tensors import TensorFact
from mlxr.compiler.spec.explain import show

_MODES = (*dict.fromkeys(format.mlx_mode for format in WeightFormat if format.mlx_mode), "mxfp8", "nvfp4")
_SETTINGS = ("bits", "group_size", "mode")
_WORD_BITS = {"U32": 32, "U8": 8}
_USUAL_BITS, _USUAL_GROUP = 4, 64
"""MLX's defaults for an affine matrix whose settings are null or missing, as in mlx-lm's mixed recipes."""


def _listed(items: Sequence[object], last: str) -> str:
    *first, final = map(str, items)
    return f"{', '.join(first)} {last} {final}"


_SUPPORTED = (
    f"mlx-lm's affine ({_listed(AFFINE_BITS, 'or')} bits, groups of {_listed(AFFINE_GROUPS, 'or')}) and "
    f"{', '.join(mode for mode in _MODES if mode != 'affine')}, Hugging Face's mxfp4, fp8 and nvfp4, "
    "AWQ (gemm) and GPTQ (2, 3, 4 or 8 bits), and pack-quantized integers"
)
_NAMED_FLOATS = ("float-quantized", "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized")
_SMALL_FLOATS: dict[str, dict[str, tuple[object, ...]]] = {
    "fp8": {"fmt": ("e4m3", "float8_e4m3fn", None)},
    "fbgemm_fp8": {},
    "compressed-tensors": {"format": (*_NAMED_FLOATS, "mixed-precision"), "transform_config": (None, {})},
    "modelopt": {"quant_algo": ("FP8", "FP8_PB_WO", "NVFP4")},
}
"""Methods whose weights are floats of 8 or 4 bits with scales (transformers, llm-compressor, NVIDIA), with the settings
that say so. How activations are rounded does not matter: here they are not."""
_TILES = [1 << power for power in range(16)]
"""Rows or columns that may share a scale: the reader of weights finds them by the numbers of scales."""


def check_quantisation(facts: Facts) -> None:
    """Refuses quantisation methods that are not supported, and reads the settings of the others.

    Raises:
        SpecError: the method is not supported; the message names it.
    """
    for key in QUANTISATION:
        settings = facts.get(key)
        if settings is None:
            continue
        if not isinstance(settings, dict):
            raise facts.refuse(key, settings, "a section")
        method = settings.get("quant_method", "mlx" if {"bits", "group_size"} <= settings.keys() else None)
        supported = method in ("mlx", "mxfp4") or _has_small_floats(method, settings)
        supported = supported or bool(_integers(settings)) or _is_turned(method, settings)
        if not supported:
            raise SpecError(
                f"{facts.source}: {key}: quantised by {show(method)}, which is not supported; supported: {_SUPPORTED}. "
                "Use the model's GGUF file, or its f16 or bf16 folder"
            )
        for where, part in {key: settings, **_layers(settings)}.items():
            mode = part.get("mode", "affine")
            if method == "mlx" and mode not in _MODES:
                raise SpecError(
                    f"{facts.source}: {where[:100]!a}: mode {show(mode)} is not supported; supported: {_SUPPORTED}"
                )


def _has_small_floats(method: object, settings: Mapping[str, Any]) -> bool:
    if not isinstance(method, str) or method not in _SMALL_FLOATS:
        return False
    groups = settings.get("config_groups")
    listed: list[Any] = list(groups.values()) if isinstance(groups, dict) else []
    weights: list[Any] = [group.get("weights") if isinstance(group, dict) else None for group in listed]
    if not all(isinstance(weight, dict) for weight in weights):
        return False
    named, is_mixed = settings.get("format"), settings.get("format") == "mixed-precision"
    formats = [group.get("format") if is_mixed else named for group in listed]
    if not all(_is_small_float(weight, format) for weight, format in zip(weights, formats, strict=True)):
        return False
    if is_mixed and any(format not in _NAMED_FLOATS for format in formats):
        return False
    tiles = [settings.get("weight_block_size"), *(each.get("block_structure") for each in weights)]
    known = all(tile is None or (isinstance(tile, list) and all(size in _TILES for size in tile)) for tile in tiles)
    return known and all(settings.get(key) in values for key, values in _SMALL_FLOATS[method].items())


def _is_small_float(weights: Mapping[str, Any], format: object) -> bool:
    kind, group = (weights.get("num_bits"), weights.get("type")), 32 if format == "mxfp4-pack-quantized" else 16
    return kind == (8, "float") or (*kind, weights.get("group_size")) == (4, "float", group)


def _is_turned(method: object, settings: Mapping[str, Any]) -> bool:
    """Whether there are AWQ's or GPTQ's integers in the usual order of bits, the same ones in all layers."""
    if method == "awq":
        usual = str(settings.get("version", "gemm")).lower() == "gemm" and settings.get("zero_point", True) is True
        return usual and settings.get("bits") == 4
    if method != "gptq" or settings.get("dynamic"):
        return False
    forms = settings.get("checkpoint_format", "gptq"), settings.get("is_marlin_format", False)
    return forms == ("gptq", False) and settings.get("bits") in (2, 3, 4, 8)


class _Integers(NamedTuple):
    """What a group of layers with packed integers says of them."""

    bits: int
    group: int | None
    """None: a row is one."""
    has_zeros: bool


def _integers(settings: Mapping[str, Any]) -> tuple[_Integers, ...]:
    """The kinds of packed integers (llm-compressor), if there are no others that are not read; else none."""
    packed = ("compressed-tensors", "pack-quantized")
    if (settings.get("quant_method"), settings.get("format")) != packed or settings.get("transform_config"):
        return ()
    groups = settings.get("config_groups")
    found = []
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict) or group.get("format", packed[1]) not in (packed[1], None):
            return ()
        bits, size = weights.get("num_bits"), weights.get("group_size")
        said = (weights.get("type", "int"), weights.get("strategy"), weights.get("dynamic", False))
        # Columns that were sorted have a tensor of their own that says how.
        known = said in (("int", "group", False), ("int", "channel", False)) and weights.get("actorder") != "group"
        if not known or bits not in AFFINE_BITS or (said[1] == "group" and not (isinstance(size, int) and size > 0)):
            return ()
        found.append(_Integers(bits, size if said[1] == "group" else None, not weights.get("symmetric", True)))
    return tuple(found)


def _layers(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {text_name(str(name)): value for name, value in settings.items() if isinstance(value, dict)}


def quantised_tensors(facts: Facts, tensors: Mapping[str, TensorFact]) -> dict[str, TensorFact]:
    """The tensors, with the planes of each quantised matrix brought together under the name of its numbers.

    Its shape is then that of the matrix, and its type the name of a format.

    Raises:
        SpecError: shapes and settings contradict each other, or mean a format that is not supported.
    """
    matrices = dict(tensors)
    settings: dict[str, Any] = next(filter(None, map(facts.get, QUANTISATION)), {})
    layers = _layers(settings)
    for first, second, _ in PLANE_ENDINGS:
        for stem in [name.removesuffix(second) for name in tensors if name.endswith(second)]:
            name, scales, biases = plane_names(stem + first)
            if (numbers := matrices.get(name)) is None:
                continue
            zeros = matrices.pop(f"{stem}.zeros", None)
            planes = _Planes(name, numbers, matrices.pop(scales), matrices.pop(biases, zeros))
            is_packed = numbers.type == "I32"
            of_layer = layers.get(stem, settings)
            matrices[name] = (
                planes.integers(facts.source, of_layer) if is_packed else planes.matrix(facts.source, of_layer)
            )
    return matrices


def _of_format(group: Any, row_bits: int, bits: object) -> Any:
    """The columns that share a scale in a format, where a file has more of them; -1: all of a row."""
    if group == -1 and isinstance(bits, int) and bits > 0:
        group = row_bits // bits
    return next((own for own in reversed(AFFINE_GROUPS) if isinstance(group, int) and group % own == 0), group)


class _Planes(NamedTuple):
    """The tensors of one quantised matrix."""

    name: str
    numbers: TensorFact
    scales: TensorFact
    biases: TensorFact | None

    def matrix(self, source: str, settings: Mapping[str, Any]) -> TensorFact:
        """Shape and format of the matrix."""
        numbers, scales, biases = self.numbers, self.scales, self.biases
        # In Hugging Face's files the 16 bytes of a block are the last dimension.
        outer = len(scales.shape) - 1
        row_bits = _WORD_BITS.get(numbers.type, 0) * math.prod(numbers.shape[outer:])
        groups = scales.shape[-1] if scales.shape else 0
        if outer < 0 or numbers.shape[:outer] != scales.shape[:-1] or not row_bits or not groups or row_bits % groups:
            raise self._wrong(source, settings)
        bits, group = (settings.get(key) for key in ("bits", "group_size"))
        if biases is None:
            format = plane_format(row_bits // groups, scales.type, has_biases=False)
        elif (biases.shape, biases.type) == (scales.shape, scales.type):
            group = _USUAL_GROUP if group is None else _of_format(group, row_bits, bits)
            format = plane_format(row_bits // groups, scales.type, has_biases=True, group=group)
            if format and format.affine and format.affine.bits != (_USUAL_BITS if bits is None else bits):
                format = None
        else:
            format = None
        if format is None:
            raise self._wrong(source, settings)
        return TensorFact((*scales.shape[:-1], groups * format.block_elements), str(format))

    def integers(self, source: str, settings: Mapping[str, Any]) -> TensorFact:
        """The same of packed integers, of which `biases` are those that mean 0."""
        outer, words = self.numbers.shape[:-1], math.prod(self.numbers.shape[-1:])
        groups = self.scales.shape[-1] if self.scales.shape else 0
        found = set()
        for kind in _integers(settings):
            columns = words * 32 // kind.bits
            group = kind.group or max(1, columns)
            format = integer_format(kind.bits, group, self.scales.type, has_zeros=kind.has_zeros)
            fits = groups > 0 and columns == group * groups and outer == self.scales.shape[:-1]
            if format is not None and fits and kind.has_zeros == (self.biases is not None):
                found.add(TensorFact((*outer, columns), str(format)))
        if len(found) != 1:
            raise self._wrong(source, settings)
        return found.pop()

    def _wrong(self, source: str, settings: Mapping[str, Any]) -> SpecError:
        def described(tensor: TensorFact | None) -> str:
            return f"{list(tensor.shape)} {tensor.type[:20]}" if tensor else "none"

        given = ", ".join(f"{key} {show(settings[key])}" for key in _SETTINGS if key in settings) or "nothing"
        return SpecError(
            f"{source}: {self.name[:100]!a} has numbers {described(self.numbers)}, scales {described(self.scales)} and "
            f"biases {described(self.biases)}, and its settings are {given}: no quantisation that is supported; "
            f"supported: {_SUPPORTED}"
        )
