"""Heads of `mlxr_tests.eagle_models` as llama.cpp's converter writes them."""

from pathlib import Path

import gguf
import numpy as np

from mlxr_tests.eagle_models import HEADS, HIDDEN, VOCAB

_GGUF = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "hidden_norm": "attn_norm_2",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "norm": "output_norm",
    "lm_head": "output",
    "embed_tokens": "token_embd",
    "input_norm": "enc.output_norm",
}


def save_head(name: str, path: Path) -> Path:
    """The head as llama.cpp's converter writes it, f32."""
    head, layer = HEADS[name], HEADS[name].layer
    writer = gguf.GGUFWriter(path, "eagle3")
    numbers_of = {
        "block_count": 1,
        "context_length": layer["max_position_embeddings"],
        "embedding_length": head.hidden,
        "feed_forward_length": layer["intermediate_size"],
        "attention.head_count": layer["num_attention_heads"],
        "attention.head_count_kv": layer["num_key_value_heads"],
        "attention.key_length": layer["head_dim"],
        "attention.value_length": layer["head_dim"],
        "rope.dimension_count": layer["head_dim"],
        "vocab_size": VOCAB,
        "target_hidden_size": HIDDEN,
    }
    for key, value in numbers_of.items():
        writer.add_uint32(f"eagle3.{key}", value)
    writer.add_float32("eagle3.rope.freq_base", layer["rope_theta"])
    writer.add_float32("eagle3.attention.layer_norm_rms_epsilon", layer["rms_norm_eps"])
    writer.add_array("eagle3.target_layers", list(head.taps))
    writer.add_bool("eagle3.norm_before_residual", head.norm_residual)
    writer.add_bool("eagle3.norm_before_fc", head.tap_norm == "all")
    writer.add_tokenizer_model("no_vocab")
    for full, array in head.tensors().items():
        if full == "d2t":
            writer.add_tensor("d2t", head.ids())
        if full in ("d2t", "t2d"):
            continue
        plain = full.removesuffix(".weight")
        role = plain.removeprefix(head.prefix)
        renamed = f"{'blk.0.' if role != plain else ''}{_GGUF.get(role, role)}.weight"
        half = layer["head_dim"] // 2
        pairs = (-1, 2, half, array.shape[-1]) if role in ("self_attn.q_proj", "self_attn.k_proj") else None
        held = array if pairs is None else array.reshape(pairs).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(renamed, np.ascontiguousarray(held))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
