"""Shapes of published models, of which files with random weights are made: cut to a few layers, or whole."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_VOCAB = 32768
"""Of shapes that name no other: a model of few layers should not be all embeddings."""
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


def _llama(
    hidden: int, kv_heads: int, width: int, base: float, depth: int, words: int
) -> Callable[[int], PublishedShape]:
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
        vocab = words if layers >= depth else _VOCAB
        outside = {"output.weight": (vocab, hidden)}
        return PublishedShape("llama", layers, hidden, metadata, layer, outside, vocab)

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
    vocab = 151936 if layers >= 48 else _VOCAB

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
        {"output.weight": (vocab, h)},
        vocab,
    )


SHAPES: Mapping[str, Callable[[int], PublishedShape]] = {
    "qwen1.5-moe-a2.7b": _qwen,
    "qwen3-30b-a3b": _qwen_3_moe,
    "glm-4.7-flash": _glm,
    "gemma-4-e4b": _gemma,
    "lfm2.5-1.2b": _lfm2,
    "qwen3.5-0.8b": _qwen_3_5(1024, 3584, 8, 2, 16),
    "qwen3.5-4b": _qwen_3_5(2560, 9216, 16, 4, 32),
    "tinyllama": _llama(2048, 4, 5632, 1e4, 22, 32000),
    "llama-3-8b": _llama(4096, 8, 14336, 5e5, 32, 128256),
}
"""Published shapes by name, of so many layers; with fewer words, unless a shape of all layers has its own number."""
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
WHOLE_LAYERS = {"qwen3-30b-a3b": 48, "lfm2.5-1.2b": 16, "qwen3.5-0.8b": 24, "tinyllama": 22, "llama-3-8b": 32}
"""Layers that whole models have."""
