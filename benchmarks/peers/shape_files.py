"""GGUF files of random weights with the shapes of published models, cut to a few layers, on which engines are timed.

A run of random blocks of each type is repeated as often as a tensor needs: speed does not depend on the numbers. Types
follow llama.cpp's mixtures: `more` bits for values, down projections and the output in Q4_K_M.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.quants import quantize
from gpu.k_blocks import q4_k, q6_k

from peers.models import Array, add_tokenizer, finish_gguf

FORMATS = {"q4_k_m": ("Q4_K", "Q6_K"), "q8_0": ("Q8_0", "Q8_0")}
"""The types of most matrices, and of those that get more bits."""
_INSTEAD = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
"""What llama.cpp's quantiser takes where columns are no multiple of 256."""
_BLOCKS = (1 << 14) - 3
"""Random blocks of a run; no size of a tensor is a multiple of it."""
_VOCAB = 32768
"""Of shapes that name no other: a model of few layers should not be all embeddings."""
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
_MORE = ("attn_v", "ffn_down", "output.weight")

Sizes = Mapping[str, tuple[int, ...]]
"""Dimensions of tensors by their names, outermost first."""


@dataclass(frozen=True)
class PublishedShape:
    """The dimensions of a published model.

    Attributes:
        architecture: GGUF's name for it.
        layers: how many a file has.
        hidden: the width of the residual stream.
        metadata: GGUF keys, without the architecture's name before them.
        layer: dimensions of the tensors of a layer, by its number.
        outside: of tensors outside the layers, beside the embedding table and the last norm.
        vocab: rows of the embedding table.
        last_norm: what GGUF calls the last norm.
    """

    architecture: str
    layers: int
    hidden: int
    metadata: Mapping[str, Any]
    layer: Callable[[int], Sizes]
    outside: Sizes = field(default_factory=dict)
    vocab: int = _VOCAB
    last_norm: str = "output_norm"

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and dimensions of each tensor."""
        yield "token_embd.weight", (self.vocab, self.hidden)
        yield from self.outside.items()
        for i in range(self.layers):
            yield from ((f"blk.{i}.{name}", dims) for name, dims in self.layer(i).items())
        yield f"{self.last_norm}.weight", (self.hidden,)


def _weights(**sizes: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": dims for name, dims in sizes.items()}


def _mlp(hidden: int, width: int, ending: str = "", experts: tuple[int, ...] = ()) -> Sizes:
    wide, down = (*experts, width, hidden), (*experts, hidden, width)
    return {f"ffn_{name}{ending}.weight": down if name == "down" else wide for name in ("gate", "up", "down")}


def _qwen2_moe(_: int) -> Sizes:
    h = 2048
    attention = _weights(attn_norm=(h,), attn_q=(h, h), attn_k=(h, h), attn_v=(h, h), attn_output=(h, h))
    router = _weights(ffn_norm=(h,), ffn_gate_inp=(60, h), ffn_gate_inp_shexp=(h,))
    biases = {f"attn_{role}.bias": (h,) for role in "qkv"}
    return attention | biases | router | _mlp(h, 1408, "_exps", (60,)) | _mlp(h, 5632, "_shexp")


def _glm_flash(i: int) -> Sizes:
    h, heads, latent = 2048, 20, 512
    attention = _weights(
        attn_norm=(h,),
        attn_q_a=(768, h),
        attn_q_a_norm=(768,),
        attn_q_b=(heads * 256, 768),
        attn_kv_a_mqa=(latent + 64, h),
        attn_kv_a_norm=(latent,),
        attn_k_b=(heads, latent, 192),
        attn_v_b=(heads, 256, latent),
        attn_output=(h, heads * 256),
        ffn_norm=(h,),
    )
    if i == 0:
        return attention | _mlp(h, 10240)
    router = {"ffn_gate_inp.weight": (64, h), "exp_probs_b.bias": (64,)}
    return attention | router | _mlp(h, 1536, "_exps", (64,)) | _mlp(h, 1536, "_shexp")


def _llama(hidden: int, kv_heads: int, width: int, base: float) -> Callable[[int], PublishedShape]:
    heads, head_dim = 32, hidden // 32

    def layer(_: int) -> Sizes:
        attention = _weights(
            attn_norm=(hidden,),
            attn_q=(hidden, hidden),
            attn_k=(kv_heads * head_dim, hidden),
            attn_v=(kv_heads * head_dim, hidden),
            attn_output=(hidden, hidden),
            ffn_norm=(hidden,),
        )
        return attention | _mlp(hidden, width)

    def shape(layers: int) -> PublishedShape:
        metadata = {
            "feed_forward_length": width,
            "attention.head_count": heads,
            "attention.head_count_kv": kv_heads,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": head_dim,
            "rope.freq_base": base,
        }
        return PublishedShape("llama", layers, hidden, metadata, layer, {"output.weight": (_VOCAB, hidden)})

    return shape


def _is_global(i: int) -> bool:
    return i % 6 == 5


def _gemma_e4b(i: int, own_keys: int) -> Sizes:
    h, width = 2560, 512 if _is_global(i) else 256
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm")
    attention = _weights(attn_q=(8 * width, h), attn_q_norm=(width,), attn_output=(h, 8 * width))
    if i < own_keys:
        attention |= _weights(attn_k=(2 * width, h), attn_k_norm=(width,), attn_v=(2 * width, h))
    per_layer = _weights(inp_gate=(256, h), proj=(h, 256), layer_output_scale=(1,))
    return attention | _weights(**dict.fromkeys(norms, (h,))) | _mlp(h, 10240) | per_layer


_LFM2_ATTENTION = (2, 5, 8, 10, 12, 14)
"""Layers of LFM2.5 1.2B that have attention; the others have a short convolution."""


def _lfm2_layer(i: int) -> Sizes:
    h, kv = 2048, 512
    if i in _LFM2_ATTENTION:
        mixer = _weights(attn_q=(h, h), attn_k=(kv, h), attn_v=(kv, h), attn_output=(h, h), attn_q_norm=(64,))
        mixer |= _weights(attn_k_norm=(64,))
    else:
        mixer = {f"shortconv.{name}.weight": dims for name, dims in (("in_proj", (3 * h, h)), ("out_proj", (h, h)))}
        mixer |= {"shortconv.conv.weight": (h, 3)}
    return mixer | _weights(attn_norm=(h,), ffn_norm=(h,)) | _mlp(h, 8192)


def _lfm2(layers: int) -> PublishedShape:
    return PublishedShape(
        "lfm2",
        layers,
        2048,
        {
            "feed_forward_length": 8192,
            "attention.head_count": 32,
            "attention.head_count_kv": [8 if i in _LFM2_ATTENTION else 0 for i in range(layers)],
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 1e6,
            "shortconv.l_cache": 3,
        },
        _lfm2_layer,
        vocab=65536,
        last_norm="token_embd_norm",
    )


def _qwen_3_5(hidden: int, mlp: int, heads: int, kv_heads: int, value_heads: int) -> Callable[[int], PublishedShape]:
    width, keys, values = heads * 256, 16 * 128, value_heads * 128

    def layer(i: int) -> Sizes:
        if i % 4 == 3:
            kv = (kv_heads * 256, hidden)
            mixer = _weights(attn_q=(2 * width, hidden), attn_k=kv, attn_v=kv, attn_output=(hidden, width))
            mixer |= _weights(attn_q_norm=(256,), attn_k_norm=(256,))
        else:
            qkv = 2 * keys + values
            mixer = _weights(attn_qkv=(qkv, hidden), attn_gate=(values, hidden), ssm_out=(hidden, values))
            mixer |= _weights(ssm_alpha=(value_heads, hidden), ssm_beta=(value_heads, hidden), ssm_norm=(128,))
            mixer |= _weights(ssm_conv1d=(qkv, 4)) | {"ssm_a": (value_heads,), "ssm_dt.bias": (value_heads,)}
        return mixer | _weights(attn_norm=(hidden,), post_attention_norm=(hidden,)) | _mlp(hidden, mlp)

    def shape(layers: int) -> PublishedShape:
        metadata = {
            "feed_forward_length": mlp,
            "attention.head_count": heads,
            "attention.head_count_kv": kv_heads,
            "attention.key_length": 256,
            "attention.value_length": 256,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.dimension_count": 64,
            "rope.dimension_sections": [11, 11, 10, 0],
            "rope.freq_base": 1e7,
            "full_attention_interval": 4,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": values,
            "ssm.state_size": 128,
            "ssm.time_step_rank": value_heads,
            "ssm.group_count": 16,
        }
        return PublishedShape("qwen35", layers, hidden, metadata, layer, vocab=248320)

    return shape


def _qwen(layers: int) -> PublishedShape:
    return PublishedShape(
        "qwen2moe",
        layers,
        2048,
        {
            "feed_forward_length": 5632,
            "attention.head_count": 16,
            "attention.head_count_kv": 16,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e6,
            "expert_count": 60,
            "expert_used_count": 4,
            "expert_feed_forward_length": 1408,
            "expert_shared_feed_forward_length": 5632,
        },
        _qwen2_moe,
        {"output.weight": (_VOCAB, 2048)},
    )


def _glm(layers: int) -> PublishedShape:
    return PublishedShape(
        "deepseek2",
        layers,
        2048,
        {
            "feed_forward_length": 10240,
            "attention.head_count": 20,
            "attention.head_count_kv": 1,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.q_lora_rank": 768,
            "attention.kv_lora_rank": 512,
            "attention.key_length": 576,
            "attention.value_length": 512,
            "attention.key_length_mla": 256,
            "attention.value_length_mla": 256,
            "rope.dimension_count": 64,
            "rope.freq_base": 1e6,
            "leading_dense_block_count": 1,
            "expert_count": 64,
            "expert_used_count": 4,
            "expert_shared_count": 1,
            "expert_feed_forward_length": 1536,
            "expert_weights_scale": 1.8,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
        },
        _glm_flash,
        {"output.weight": (_VOCAB, 2048)},
    )


def _gemma(layers: int) -> PublishedShape:
    # As in the whole model: the last layer with keys of its own is a global one.
    own_keys = max(6, layers * 24 // 42 // 6 * 6)
    return PublishedShape(
        "gemma4",
        layers,
        2560,
        {
            "feed_forward_length": [10240] * layers,
            "attention.head_count": 8,
            "attention.head_count_kv": [2] * layers,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.key_length": 512,
            "attention.value_length": 512,
            "attention.key_length_swa": 256,
            "attention.value_length_swa": 256,
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": [not _is_global(i) for i in range(layers)],
            "attention.shared_kv_layers": layers - own_keys,
            "rope.dimension_count": 512,
            "rope.dimension_count_swa": 256,
            "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e4,
            "embedding_length_per_layer_input": 256,
            "final_logit_softcapping": 30.0,
        },
        lambda i: _gemma_e4b(i, own_keys),
        _weights(
            per_layer_token_embd=(_VOCAB, 256 * layers),
            per_layer_model_proj=(256 * layers, 2560),
            per_layer_proj_norm=(256,),
            rope_freqs=(256,),
        ),
    )


def _qwen_3_moe(layers: int) -> PublishedShape:
    h, heads, kv_heads, head_dim, experts, width = 2048, 32, 4, 128, 128, 768

    def layer(_: int) -> Sizes:
        q, kv = heads * head_dim, kv_heads * head_dim
        attention = _weights(attn_norm=(h,), attn_q=(q, h), attn_k=(kv, h), attn_v=(kv, h), attn_output=(h, q))
        norms = _weights(attn_q_norm=(head_dim,), attn_k_norm=(head_dim,), ffn_norm=(h,), ffn_gate_inp=(experts, h))
        return attention | norms | _mlp(h, width, "_exps", (experts,))

    return PublishedShape(
        "qwen3moe",
        layers,
        h,
        {
            "feed_forward_length": 6144,
            "attention.head_count": heads,
            "attention.head_count_kv": kv_heads,
            "attention.key_length": head_dim,
            "attention.value_length": head_dim,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e6,
            "expert_count": experts,
            "expert_used_count": 8,
            "expert_feed_forward_length": width,
        },
        layer,
        {"output.weight": (_VOCAB, h)},
    )


SHAPES: Mapping[str, Callable[[int], PublishedShape]] = {
    "qwen1.5-moe-a2.7b": _qwen,
    "qwen3-30b-a3b": _qwen_3_moe,
    "glm-4.7-flash": _glm,
    "gemma-4-e4b": _gemma,
    "lfm2.5-1.2b": _lfm2,
    "qwen3.5-0.8b": _qwen_3_5(1024, 3584, 8, 2, 16),
    "qwen3.5-4b": _qwen_3_5(2560, 9216, 16, 4, 32),
    "tinyllama": _llama(2048, 4, 5632, 1e4),
    "llama-3-8b": _llama(4096, 8, 14336, 5e5),
}
"""Published shapes by name, of so many layers, with fewer words."""
FEW_LAYERS = {
    "qwen1.5-moe-a2.7b": 4,
    "qwen3-30b-a3b": 4,
    "glm-4.7-flash": 5,
    "gemma-4-e4b": 12,
    "lfm2.5-1.2b": 16,
    "qwen3.5-0.8b": 24,
    "qwen3.5-4b": 8,
    "tinyllama": 22,
    "llama-3-8b": 4,
}
"""Layers of each that a CPU is timed with; of LFM2.5, Qwen 3.5 and TinyLlama all."""


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
    writer.add_context_length(8192)
    writer.add_block_count(shape.layers)
    writer.add_embedding_length(shape.hidden)
    writer.add_vocab_size(shape.vocab)
    writer.add_file_type(getattr(LlamaFileType, f"MOSTLY_{format_name.upper()}"))
    for key, value in shape.metadata.items():
        _add(writer, f"{shape.architecture}.{key}", value)
    add_tokenizer(writer, shape.vocab)
    for tensor, dims in shape.tensors():
        if len(dims) == 1 or any(word in tensor for word in _VECTORS):
            writer.add_tensor(tensor, _vector(tensor, dims))
            continue
        kind = FORMATS[format_name][any(word in tensor for word in _MORE)]
        kind = kind if dims[-1] % 256 == 0 else _INSTEAD.get(kind, kind)
        writer.add_tensor(tensor, _matrix(kind, tensor, dims), raw_dtype=GGMLQuantizationType[kind])
    finish_gguf(writer)
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


def _vector(name: str, dims: tuple[int, ...]) -> Array:
    if name == "rope_freqs.weight":  # a quarter of the pairs are rotated
        return np.where(np.arange(*dims) < dims[0] // 4, 1, 1e30).astype(np.float32)
    if name.endswith("ssm_a"):
        return np.full(dims, -1, np.float32)
    if len(dims) == 1 and "bias" not in name:
        return np.ones(dims, np.float32)
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(dims, np.float32) * np.float32(0.02)


def _matrix(kind: str, name: str, dims: tuple[int, ...]) -> Array:
    elements, _ = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    count, start = prod(dims) // elements, zlib.crc32(name.encode()) % _BLOCKS
    run = _run(kind)
    blocks = np.resize(np.concatenate([run[start:], run[:start]]), (count, run.shape[1]))
    return blocks.reshape(*dims[:-1], -1)


@cache
def _run(kind: str) -> Array:
    """Random blocks of a type, [blocks, bytes] u8."""
    if kind in ("Q4_K", "Q6_K"):
        return (q4_k if kind == "Q4_K" else q6_k)().blocks
    numbers = np.random.default_rng(3).standard_normal((_BLOCKS, 32), np.float32) * np.float32(0.02)
    return quantize(numbers, GGMLQuantizationType[kind])
