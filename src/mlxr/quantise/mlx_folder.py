"""Writes a model as a folder of mlx-lm's, in MLX's own formats, with the numbers that `mlx_lm.convert` gives.

Tensors keep their names. So families are refused whose tensors mlx-lm renames, joins or changes when it loads them, and
those of which it keeps some matrices in other formats.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import SpecError, WeightsError
from mlxr.output_file import new_folder
from mlxr.quantise.block_quantiser import Bytes, Floats
from mlxr.quantise.gguf_output import Progress
from mlxr.quantise.safetensors_output import PlainTensor, write_safetensors
from mlxr.quantise.source_tensor import SourceTensor, of_file
from mlxr.runtime.json_file import read_json_object
from mlxr.runtime.weights.element_types import encode
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.stored_tensor import quoted

KINDS = frozenset(
    (
        *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "olmo2", "olmo3"),
        *("smollm3", "starcoder2", "stablelm", "exaone4", "internlm2", "internlm3", "glm", "glm4", "seed_oss"),
        *("ernie4_5", "helium", "nemotron", "cohere2", "hunyuan_v1_dense"),
    )
)
"""Kinds of models (`model_type`) whose files mlx-lm reads as they are."""
_SAVED = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
_TYPES = ("F16", "BF16", "F32")
_LEFT_OUT = ("rotary_emb.inv_freq", "rope.inv_freq")
"""Ends of names of tensors that follow from config.json."""


@dataclass(frozen=True)
class MlxFormat:
    """A format of MLX.

    Attributes:
        mode: `affine` or `mxfp4`; empty: floats.
        bits: of a number.
        group: neighbours that share a scale.
        floats: type of scales and of what is not quantised; empty: what config.json says.
    """

    mode: str
    bits: int = 16
    group: int = 1
    floats: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """What config.json says of it."""
        return {"group_size": self.group, "bits": self.bits, "mode": self.mode}


def mlx_format(name: str, group: int | None = None) -> MlxFormat | None:
    """The format of a name such as `affine4`, `mxfp4` or `bf16`; None: there is none.

    Args:
        name: in small letters.
        group: neighbours that share a scale, of affine formats; None: 64.
    """
    if name in _SAVED.values():
        return MlxFormat("", floats=name)
    if name == "mxfp4":
        return MlxFormat("mxfp4", 4, 32)
    if name in {f"affine{bits}" for bits in (2, 3, 4, 5, 6, 8)}:
        return MlxFormat("affine", int(name.removeprefix("affine")), group or 64)
    return None


@dataclass(frozen=True)
class FolderContent:
    """A model as a folder has it.

    Attributes:
        config: what config.json says.
        tensors: by the names of Hugging Face.
        files: all other files, by name.
    """

    config: Mapping[str, Any]
    tensors: Sequence[SourceTensor]
    files: Mapping[str, bytes]


def folder_content(source: Path) -> FolderContent:
    """A folder with a config.json.

    Raises:
        MlxrError: it cannot be read, is of another kind or quantised already.
    """
    config = read_json_object(source / file_keys.CONFIG_FILE, file_keys.CONFIG_BYTES, SpecError)
    _check_config(source, config)
    tensors = open_weights(source).tensors.values()
    for tensor in tensors:
        if tensor.type not in _TYPES and not tensor.name.endswith(_LEFT_OUT):
            raise WeightsError(f"{source}: tensor {quoted(tensor.name)} is {tensor.type}; expected F16, BF16 or F32")
    beside = [source / name for name in file_keys.DESCRIBING_FILES if name != file_keys.CONFIG_FILE]
    files = {str(path.relative_to(source)): path.read_bytes() for path in beside if path.is_file()}
    return FolderContent(config, [of_file(tensor) for tensor in tensors], files)


def write_mlx_folder(source: FolderContent, out: Path, format: MlxFormat, progress: Progress | None = None) -> None:
    """Writes a folder in a format of MLX, whole or not at all.

    Args:
        source: the model.
        out: the folder to make.
        format: of all matrices whose rows are whole groups.
        progress: told before each tensor.

    Raises:
        MlxrError: it cannot be read or written.
    """
    tensors = list(_tensors(source, format))
    described = {key: value for key, value in source.config.items() if key not in ("_name_or_path", "vision_config")}
    if format.mode:
        described |= {key: format.settings for key in file_keys.QUANTISATION}
    with new_folder(out, sum(tensor.size_bytes for tensor in tensors)) as folder:
        write_safetensors(folder, tensors, progress)
        text = json.dumps(dict(sorted(described.items())), indent=4, ensure_ascii=False)
        (folder / file_keys.CONFIG_FILE).write_text(text, "utf-8")
        for name, content in source.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)


def _check_config(source: Path, config: Mapping[str, Any]) -> None:
    kind = config.get("model_type")
    if kind not in KINDS or file_keys.TEXT_SECTION in config:
        raise SpecError(
            f"{source}: model_type {kind!r}: mlx-lm reads other tensors than this folder has, and how they are made of "
            f"these is known for {', '.join(sorted(KINDS))}; use mlx_lm.convert, or a GGUF format"
        )
    for key in file_keys.QUANTISATION:
        if config.get(key) is not None:
            raise WeightsError(f"{source}: {key}: it is quantised already; quantise the original")


def _tensors(source: FolderContent, format: MlxFormat) -> Iterator[PlainTensor]:
    config = source.config
    floats = format.floats or _SAVED.get(str(config.get("torch_dtype")), "")
    tied = config.get("tie_word_embeddings", config["model_type"].startswith("gemma"))
    for tensor in source.tensors:
        if tensor.name.endswith(_LEFT_OUT) or (tied and tensor.name == "lm_head.weight"):
            continue
        kept = floats or tensor.format
        is_matrix = tensor.name.endswith(".weight") and len(tensor.shape) > 1
        if format.mode and is_matrix and tensor.shape[-1] % format.group == 0:
            yield from _quantised(tensor, kept, format)
        else:
            yield PlainTensor(tensor.name, tensor.shape, kept.upper(), partial(_plain, tensor, kept))


def _plain(tensor: SourceTensor, floats: str) -> Iterator[Bytes]:
    for _, numbers in tensor.slabs():
        yield np.ascontiguousarray(encode(numbers, floats)).view(np.uint8)


def _quantised(tensor: SourceTensor, floats: str, format: MlxFormat) -> Iterator[PlainTensor]:
    *rows, columns = tensor.shape
    stem = tensor.name.removesuffix("weight")
    scale = "U8" if format.mode == "mxfp4" else floats.upper()
    planes = [("weight", columns * format.bits // 32, "U32"), ("scales", columns // format.group, scale)]
    if format.mode == "affine":
        planes.append(("biases", columns // format.group, scale))
    for index, (name, width, dtype) in enumerate(planes):
        yield PlainTensor(stem + name, (*rows, width), dtype, partial(_plane, tensor, floats, format, index))


def _plane(tensor: SourceTensor, floats: str, format: MlxFormat, index: int) -> Iterator[Bytes]:
    for _, numbers in tensor.slabs():
        plane = mx.quantize(_as_array(numbers, floats), group_size=format.group, bits=format.bits, mode=format.mode)[
            index
        ]
        mx.eval(plane)
        carried = plane.view(mx.uint16) if plane.dtype == mx.bfloat16 else plane
        yield np.ascontiguousarray(np.array(carried)).view(np.uint8)


_ARRAYS: Mapping[str, Callable[[mx.array], mx.array]] = {
    "f16": lambda x: x.astype(mx.float16),
    "bf16": lambda x: x.astype(mx.bfloat16),
    "f32": lambda x: x,
}


def _as_array(numbers: Floats, floats: str) -> mx.array:
    return _ARRAYS[floats](mx.array(np.ascontiguousarray(numbers)))
