"""Writes GGUF files of random weights with the shapes of published models, on which engines are timed.

A run of random blocks of each type is repeated as often as a tensor needs: speed does not depend on the numbers, and
a file of 16 GB takes no longer than its disk. Types follow llama.cpp's mixtures: in Q4_K_M the output has more bits,
and so have values and down projections of half of the layers.
"""

import zlib
from collections.abc import Iterator
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.quants import quantize
from gpu.k_blocks import q4_k, q6_k

from peers.models import Array, add_tokenizer
from peers.shape_files import FEW_LAYERS, SHAPES

FORMATS = {"q4_k_m": ("Q4_K", "Q6_K"), "q8_0": ("Q8_0", "Q8_0"), "bf16": ("BF16", "BF16")}
"""The types of most matrices, and of those that get more bits."""
_INSTEAD = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
"""What llama.cpp's quantiser takes where columns are no multiple of 256."""
_CONTEXT = 40960
_NUMBERS = (1 << 19) - 96
"""Random numbers of a run; no size of a tensor is a multiple of it."""
_REPEATED_BYTES = 1 << 25
_VECTORS = (
    "norm",
    "bias",
    "_inp.weight",
    "_inp_shexp",
    "probs_b",
    "rope_freqs",
    "scale",
    "shortconv.conv",
    "ssm_conv1d",
)
_MORE = ("attn_v.", "ffn_down")


def write_shape(name: str, format_name: str, folder: Path, layers: int | None = None) -> Path:
    """Writes a file, if it is not there.

    Args:
        name: one of SHAPES.
        format_name: one of FORMATS.
        folder: an existing folder.
        layers: how many it has; None: those of FEW_LAYERS.
    """
    layers = layers or FEW_LAYERS[name]
    path = folder / f"{name}-{layers}-{format_name}.gguf"
    if path.is_file():
        return path
    shape, staging = SHAPES[name](layers), path.with_suffix(".part")
    writer = GGUFWriter(staging, shape.architecture)
    writer.add_name(name)
    writer.add_context_length(_CONTEXT)
    writer.add_block_count(shape.layers)
    writer.add_embedding_length(shape.hidden)
    writer.add_vocab_size(shape.vocab)
    writer.add_file_type(getattr(LlamaFileType, f"MOSTLY_{format_name.upper()}"))
    for key, value in shape.metadata.items():
        _add(writer, f"{shape.architecture}.{key}", value)
    add_tokenizer(writer, shape.vocab)
    for tensor, dims in shape.tensors():
        kind = GGMLQuantizationType[tensor_type(tensor, dims, format_name, shape.layers)]
        elements, size = GGML_QUANT_SIZES[kind]
        writer.add_tensor_info(tensor, dims, np.dtype(np.float32), prod(dims) // elements * size, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with staging.open("ab") as file:
        for tensor, dims in shape.tensors():
            file.write(bytes(-file.tell() % writer.data_alignment))
            file.writelines(_data(tensor, dims, tensor_type(tensor, dims, format_name, shape.layers)))
        file.write(bytes(-file.tell() % writer.data_alignment))
    staging.replace(path)
    return path


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        writer.add_float32(key, value)


def tensor_type(name: str, dims: tuple[int, ...], format_name: str, layers: int) -> str:
    """The GGML type of a tensor of a model with so many layers, in one of FORMATS."""
    if len(dims) == 1 or any(word in name for word in _VECTORS):
        return "F32"
    kind = FORMATS[format_name][_has_more_bits(name, layers)]
    return kind if dims[-1] % 256 == 0 else _INSTEAD.get(kind, kind)


def _has_more_bits(name: str, layers: int) -> bool:
    """As llama.cpp's quantiser chooses: the output, and in the first and last eighth and each third layer between."""
    if not name.startswith("blk."):
        return name == "output.weight"
    layer, eighth = int(name.split(".")[1]), layers // 8
    is_chosen = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    return is_chosen and any(word in name for word in _MORE)


def _data(name: str, dims: tuple[int, ...], kind: str) -> Iterator[memoryview]:
    """The bytes of a tensor, in parts that share memory with those of others."""
    if kind == "F32":
        yield memoryview(_vector(name, dims)).cast("B")
        return
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    run, left = _run(kind), prod(dims) // elements * size
    at = zlib.crc32(name.encode()) % (_NUMBERS // elements) * size
    while left:
        part = run[at : at + left]
        yield part
        left, at = left - len(part), 0


def _vector(name: str, dims: tuple[int, ...]) -> Array:
    if name == "rope_freqs.weight":  # a quarter of the pairs are rotated
        return np.where(np.arange(*dims) < dims[0] // 4, 1, 1e30).astype(np.float32)
    if name.endswith("ssm_a"):
        return np.full(dims, -1, np.float32)
    if len(dims) == 1 and "bias" not in name:
        return np.ones(dims, np.float32)
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(dims, np.float32) * np.float32(0.02)


@cache
def _run(kind: str) -> memoryview:
    """Random blocks of a type, several times over, so that they are written in large parts."""
    if kind in ("Q4_K", "Q6_K"):
        blocks = (q4_k if kind == "Q4_K" else q6_k)().blocks
    else:
        numbers = np.random.default_rng(3).standard_normal((_NUMBERS // 32, 32), np.float32) * np.float32(0.02)
        blocks = quantize(numbers, GGMLQuantizationType[kind])
    once = np.ascontiguousarray(blocks).view(np.uint8).reshape(-1)
    return memoryview(np.tile(once, max(1, _REPEATED_BYTES // once.size)))
