"""Compares what a weight file says about its model with the spec.

Tensor shapes do not show a wrong RoPE base or a wrong norm epsilon: the model would load and talk nonsense. GGUF files
and the config.json beside safetensors files have these numbers, which must be equal to those of the spec.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mlxr.compiler.artifact import ModelSpec, file_keys
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.json_file import read_json
from mlxr.runtime.weights.weight_file import WeightFile


class _Fact(NamedTuple):
    """A number of the spec, and its keys in files: GGUF keys without the architecture, and keys of config.json."""

    name: str
    values: Callable[[ModelSpec], Iterable[float]]
    """Of one layer at least the file has to say what the spec says: layers may differ, and files name one number."""
    gguf: tuple[str, ...]
    config: tuple[str, ...]


def _thetas(spec: ModelSpec) -> Iterable[float]:
    ropes = [spec.model.rope, *(layer.rope for layer in spec.model.layer_types.values())]
    return {rope.theta for rope in ropes if rope is not None}


def _kv_heads(spec: ModelSpec) -> Iterable[float]:
    """KV heads; files of latent attention say as many as query heads, or that there is one row."""
    return {count for a in spec.model.attentions for count in ([1, a.num_heads] if a.latent else [a.num_kv_heads])}


def _head_dims(spec: ModelSpec) -> Iterable[float]:
    """Elements of a head; files of latent attention may say those of a row, or of the rotated part."""
    latents = [a.latent for a in spec.model.attentions if a.latent is not None]
    of_latents = {size for latent in latents for size in (latent.qk_dim, latent.row_dim, latent.rope_dim)}
    return of_latents | {a.head_dim for a in spec.model.attentions if a.latent is None}


def _rotary_dims(spec: ModelSpec) -> Iterable[float]:
    return {layer.rotary_dim for layer in spec.model.layers if layer.rope is not None}


_FACTS = (
    _Fact(
        "attention.num_heads",
        lambda s: {a.num_heads for a in s.model.attentions},
        ("attention.head_count",),
        ("num_attention_heads",),
    ),
    _Fact(
        "attention.num_kv_heads",
        _kv_heads,
        ("attention.head_count_kv",),
        ("num_key_value_heads",),
    ),
    _Fact(
        "attention.head_dim",
        _head_dims,
        ("attention.key_length",),
        ("head_dim",),
    ),
    _Fact(
        "norm.eps",
        lambda s: [s.model.norm.eps],
        ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"),
        ("rms_norm_eps", "layer_norm_eps", "norm_epsilon"),
    ),
    _Fact("rope.theta", _thetas, ("rope.freq_base",), ("rope_parameters.rope_theta", "rope_theta")),
    _Fact("rope.fraction x head_dim", _rotary_dims, ("rope.dimension_count",), ()),
)


def check_metadata(file: WeightFile, spec: ModelSpec) -> None:
    """Compares what a weight file says about its model with the spec. Numbers that it lacks are not checked.

    Raises:
        WeightsError: numbers differ; the message names all of them.
    """
    if file.format == "gguf":
        prefix = file.metadata.get(file_keys.ARCHITECTURE)
        flat = {key: file.metadata.get(f"{prefix}.{key}") for fact in _FACTS for key in fact.gguf}
        said = {fact.name: next((flat[key] for key in fact.gguf if flat[key] is not None), None) for fact in _FACTS}
        source = file.path
    else:
        source = file.path.with_name(file_keys.CONFIG_FILE)
        config = _read_config(source)
        said = {fact.name: _first(config, fact.config) for fact in _FACTS}
    wrong = []
    for fact in _FACTS:
        number, expected = said[fact.name], tuple(fact.values(spec))
        if not isinstance(number, int | float) or isinstance(number, bool) or not expected:
            continue
        if not any(math.isclose(number, value, rel_tol=1e-5) for value in expected):
            numbers = " or ".join(f"{value:.6g}" for value in expected)
            wrong.append(f"{fact.name} is {number:.6g}, the spec says {numbers}")
    if wrong:
        raise WeightsError(
            f"{source}: these are weights of another model, or the spec is wrong: {'; '.join(wrong)}. Correct the spec "
            "and compile it again, or name the weights it was written for"
        )


def _read_config(path: Path) -> Mapping[str, Any]:
    """The object in config.json, with the text model's keys if it describes several; an empty one if there is none."""
    config = read_json(path, file_keys.CONFIG_BYTES, WeightsError) if path.is_file() else {}
    if not isinstance(config, dict):
        return {}
    text = config.get(file_keys.TEXT_SECTION)
    return config | text if isinstance(text, dict) else config


def _first(config: Mapping[str, Any], paths: tuple[str, ...]) -> Any:
    """The first value that exists; a dot in a path leads into an object."""
    for path in paths:
        value: Any = config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None
