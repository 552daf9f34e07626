"""Tiny random encoders: their weights follow from their tensors' names, and transformers has recorded their rows.

`tests/data/encoders.json` has, for each case, the config, the tensors' shapes, token ids of texts and what transformers
gave for them; `tests/families/record_encoders.py` writes it where torch is installed. Dims are unequal; some texts are
longer than windows, and one has a single token.
"""

import base64
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

Array = npt.NDArray[np.float32]
DATA = Path(__file__).parents[2] / "data" / "encoders.json"
_BERT = {
    "vocab_size": 61,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 88,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "pad_token_id": 0,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": _BERT | {"model_type": "bert", "architectures": ["BertModel"]},
    "bert, tanh, one layer": _BERT
    | {"model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu_new", "num_hidden_layers": 1},
    "roberta": _BERT
    | {"model_type": "roberta", "architectures": ["RobertaModel"], "type_vocab_size": 1, "max_position_embeddings": 42}
    | {"pad_token_id": 1},
    "nomic": _BERT
    | {"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "hidden_act": "silu", "rope_parameters": None}
    | {"max_position_embeddings": 64},
    "modernbert": {
        "model_type": "modernbert",
        "architectures": ["ModernBertModel"],
        "vocab_size": 61,
        "hidden_size": 64,
        "num_hidden_layers": 5,
        "num_attention_heads": 2,
        "intermediate_size": 88,
        "max_position_embeddings": 64,
        "local_attention": 10,
        "norm_eps": 1e-5,
        "pad_token_id": 0,
    },
}
CONFIGS["distilbert"] = {
    "model_type": "distilbert",
    "architectures": ["DistilBertModel"],
    "vocab_size": 61,
    "dim": 64,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 88,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
CONFIGS["gemma"] = {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3TextModel"],
    "vocab_size": 61,
    "hidden_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "query_pre_attn_scalar": 48,
    "intermediate_size": 88,
    "max_position_embeddings": 64,
    "sliding_window": 10,
    "sliding_window_pattern": 3,
    "use_bidirectional_attention": True,
    "rms_norm_eps": 1e-6,
    "pad_token_id": 0,
}
RANKERS: dict[str, dict[str, Any]] = {
    "bert": _BERT | {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "num_labels": 1},
    "roberta": _BERT
    | {"model_type": "roberta", "architectures": ["RobertaForSequenceClassification"], "num_labels": 1}
    | {"type_vocab_size": 1, "max_position_embeddings": 42, "pad_token_id": 1},
}
"""Encoders with a head that ranks; its tensors begin with the name of the encoder's part."""
WORDS = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *(f"{a}{b}" for a in "bcdfgklm" for b in ("a", "e", "i", "o"))]
WORDS += [f"##{a}{b}" for a in "nprst" for b in ("a", "e", "i", "o")] + ["."]
"""The vocabulary of the rankers: words, and pieces of words."""
QUERY = "bana ce"
DOCUMENTS = ["dane. ce bari", "ko", "x gati lopo bana bana", "bana ce", ". ".join(["mise ko fanasate"] * 12)]
"""The last one is longer than the context with the query."""
TEXTS = [[5, 17, 3, 42, 8, 9, 11], [2], [4, 60, *range(20, 40)], [7, 7, 30]]


def weight(name: str, shape: tuple[int, ...]) -> Array:
    """The numbers of a tensor: those of norms are near 1, all others small."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    numbers = rng.normal(size=shape).astype(np.float32)
    if any(part in name.lower() for part in ("norm", ".ln")) and name.endswith("weight"):
        return 1 + numbers * np.float32(0.2)
    return numbers * np.float32(0.3 if name.endswith("bias") or "embeddings" in name else 1.2 / np.sqrt(shape[-1]))


def recorded() -> dict[str, Any]:
    """What the file has, by the name of the case."""
    found: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return found


def rows_of(case: dict[str, Any]) -> list[Array]:
    """The rows that transformers gave for each text: [tokens, hidden]."""
    return [decoded(rows).reshape(len(ids), -1) for rows, ids in zip(case["rows"], TEXTS, strict=True)]


def encoded(array: Array) -> str:
    """Numbers as text."""
    return base64.b64encode(np.ascontiguousarray(array, "<f4").tobytes()).decode()


def decoded(text: str) -> Array:
    """Numbers from text."""
    return np.frombuffer(base64.b64decode(text), "<f4").astype(np.float32)


def save_encoder(case: dict[str, Any], folder: Path, prefix: str = "") -> Path:
    """Writes the folder of a case, as transformers does; with a prefix before tensors' names, such as `bert.`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(case["config"]))
    tensors = {prefix + name: weight(name, tuple(shape)) for name, shape in case["tensors"].items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


_NOMIC = (
    (r"embeddings\.LayerNorm", "emb_ln"),
    (r"^layers", "encoder.layers"),
    (r"self_attn\.o_proj", "attn.out_proj"),
    (r"self_attn\.q_proj", "attn.Wqkv"),
    ("up_proj", "fc11"),
    ("gate_proj", "fc12"),
    ("down_proj", "fc2"),
    ("post_attention_layernorm", "norm1"),
    ("post_mlp_layernorm", "norm2"),
)
"""What Nomic's own files call the tensors, as transformers writes them, too (its conversion_mapping.py)."""
_NOMIC_KEYS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps",
    "max_trained_positions": "max_position_embeddings",
}


def save_nomic(case: dict[str, Any], folder: Path, architecture: str, prefix: str) -> Path:
    """Writes a case as Nomic's own files are, by nomic-embed-text-v1 (`rotary_scaling_factor`) and nomic-bert-2048."""
    config = {key: case["config"][ours] for key, ours in _NOMIC_KEYS.items()} | {
        **{"model_type": "nomic_bert", "architectures": [architecture], "activation_function": "swiglu"},
        **{"n_positions": 8192, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_scaling_factor": 2},
        **{"causal": False, "prenorm": False, "qkv_proj_bias": False, "use_rms_norm": False, "vocab_size": 61},
    }
    tensors = {}
    for name, numbers in _joined({name: weight(name, tuple(shape)) for name, shape in case["tensors"].items()}):
        own = name
        for pattern, there in _NOMIC:
            own = re.sub(pattern, there, own)
        tensors[prefix + own] = numbers
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def _joined(tensors: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    """Tensors, with projections of keys and values behind those of queries."""
    for name, numbers in tensors.items():
        if re.search("[kv]_proj", name):
            continue
        others = [tensors[name.replace("q_proj", other)] for other in ("k_proj", "v_proj")] if "q_proj" in name else []
        yield name, np.concatenate([numbers, *others])


_GGUF = {
    "bert": (
        (r"embeddings.word_embeddings", "token_embd"),
        (r"embeddings.token_type_embeddings", "token_types"),
        (r"embeddings.position_embeddings", "position_embd"),
        (r"embeddings.LayerNorm", "token_embd_norm"),
        (r"encoder.layer.(\d+).attention.self.query", r"blk.\1.attn_q"),
        (r"encoder.layer.(\d+).attention.self.key", r"blk.\1.attn_k"),
        (r"encoder.layer.(\d+).attention.self.value", r"blk.\1.attn_v"),
        (r"encoder.layer.(\d+).attention.output.dense", r"blk.\1.attn_output"),
        (r"encoder.layer.(\d+).attention.output.LayerNorm", r"blk.\1.attn_output_norm"),
        (r"encoder.layer.(\d+).intermediate.dense", r"blk.\1.ffn_up"),
        (r"encoder.layer.(\d+).output.dense", r"blk.\1.ffn_down"),
        (r"encoder.layer.(\d+).output.LayerNorm", r"blk.\1.layer_output_norm"),
    ),
    "nomic-bert": (
        (r"embeddings.word_embeddings", "token_embd"),
        (r"embeddings.token_type_embeddings", "token_types"),
        (r"embeddings.LayerNorm", "token_embd_norm"),
        (r"layers.(\d+).self_attn.q_proj", r"blk.\1.attn_qkv"),
        (r"layers.(\d+).self_attn.o_proj", r"blk.\1.attn_output"),
        (r"layers.(\d+).post_attention_layernorm", r"blk.\1.attn_output_norm"),
        (r"layers.(\d+).mlp.up_proj", r"blk.\1.ffn_up"),
        (r"layers.(\d+).mlp.gate_proj", r"blk.\1.ffn_gate"),
        (r"layers.(\d+).mlp.down_proj", r"blk.\1.ffn_down"),
        (r"layers.(\d+).post_mlp_layernorm", r"blk.\1.layer_output_norm"),
    ),
    "modern-bert": (
        (r"embeddings.tok_embeddings", "token_embd"),
        (r"embeddings.norm", "token_embd_norm"),
        (r"final_norm", "output_norm"),
        (r"layers.(\d+).attn_norm", r"blk.\1.attn_norm"),
        (r"layers.(\d+).mlp_norm", r"blk.\1.ffn_norm"),
        (r"layers.(\d+).attn.Wqkv", r"blk.\1.attn_qkv"),
        (r"layers.(\d+).attn.Wo", r"blk.\1.attn_output"),
        (r"layers.(\d+).mlp.Wi", r"blk.\1.ffn_up"),
        (r"layers.(\d+).mlp.Wo", r"blk.\1.ffn_down"),
    ),
    "gemma-embedding": (
        (r"embed_tokens", "token_embd"),
        (r"norm", "output_norm"),
        (r"layers.(\d+).self_attn.([qkv])_proj", r"blk.\1.attn_\2"),
        (r"layers.(\d+).self_attn.([qk])_norm", r"blk.\1.attn_\2_norm"),
        (r"layers.(\d+).self_attn.o_proj", r"blk.\1.attn_output"),
        (r"layers.(\d+).input_layernorm", r"blk.\1.attn_norm"),
        (r"layers.(\d+).post_attention_layernorm", r"blk.\1.post_attention_norm"),
        (r"layers.(\d+).pre_feedforward_layernorm", r"blk.\1.ffn_norm"),
        (r"layers.(\d+).post_feedforward_layernorm", r"blk.\1.post_ffw_norm"),
        (r"layers.(\d+).mlp.(up|gate|down)_proj", r"blk.\1.ffn_\2"),
    ),
}
"""What llama.cpp's converter calls the tensors, by its names of the architectures."""


_KEYS: dict[str, dict[str, Any]] = {
    "bert": {},
    "nomic-bert": {"rope.freq_base": 1000.0, "rope.scaling.type": "none", "attention.key_length": 32},
    "modern-bert": {"rope.freq_base": 160000.0, "rope.freq_base_swa": 10000.0, "rope.scaling.type": "none"}
    | {"attention.sliding_window": 10, "attention.sliding_window_pattern": 3, "vocab_size": 61}
    | {"hidden_activation": "gelu"},
    "gemma-embedding": {"rope.freq_base": 1e6, "attention.head_count_kv": 2, "attention.sliding_window": 10}
    | {"attention.key_length": 32, "attention.value_length": 32, "attention.sliding_window_pattern": 3}
    | {"attention.layer_norm_rms_epsilon": 1e-6, "dense_2_feat_in": 80, "dense_2_feat_out": 96}
    | {"dense_3_feat_in": 96, "dense_3_feat_out": 80},
}
"""What the converter writes, besides what all have."""


def save_encoder_gguf(
    case: dict[str, Any], architecture: str, path: Path, more: Mapping[str, Array] = MappingProxyType({})
) -> Path:
    """Writes a case as llama.cpp's converter does, without a vocabulary; without its pooler, which nothing needs."""
    from gguf import GGUFWriter

    config, writer = case["config"], GGUFWriter(path, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    if architecture != "gemma-embedding":
        writer.add_layer_norm_eps(config.get("layer_norm_eps", config.get("norm_eps")))
        writer.add_causal_attention(False)
    writer.add_uint32(f"{architecture}.pooling_type", 1)
    for key, value in _KEYS[architecture].items():
        add = {float: writer.add_float32, int: writer.add_uint32, str: writer.add_string}[type(value)]
        add(f"{architecture}.{key}", value)
    tensors = {name: weight(name, tuple(shape)) for name, shape in case["tensors"].items()}
    for name, numbers in _joined(tensors) if architecture == "nomic-bert" else tensors.items():
        base, _, kind = name.rpartition(".")
        shift, factor = np.float32(architecture == "gemma-embedding" and "norm" in name), np.float32(1)
        if base.endswith("q_norm"):  # GGUF has no key for another scale of scores than that of head_dim
            factor = np.sqrt(config["head_dim"] / config["query_pre_attn_scalar"], dtype=np.float32)
        for pattern, there in _GGUF[architecture]:
            if re.fullmatch(pattern, base):
                writer.add_tensor(f"{re.sub(pattern, there, base)}.{kind}", (numbers + shift) * factor)
    for name, numbers in more.items():
        writer.add_tensor(name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
