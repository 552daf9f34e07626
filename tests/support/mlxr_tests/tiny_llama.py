"""A tiny Llama in a folder, as Hugging Face has it, and with something added to its weights."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from mlxr_tests.adapter_files import MadeAdapter, llama_shapes, made_adapter

Floats = npt.NDArray[np.float32]
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDTH, VOCABULARY = 2, 48, 4, 2, 40, 88, 61
SHAPES = llama_shapes(LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDTH)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def tiny_llama(folder: Path, added: Mapping[str, Floats] | None = None) -> Path:
    """Writes the model; always the same, with what is added to the weights of modules."""
    rng = np.random.default_rng(0)
    tensors = {f"{n}.weight": rng.standard_normal(s, dtype=np.float32) * s[1] ** -0.5 for n, s in SHAPES.items()}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = rng.standard_normal((VOCABULARY, HIDDEN), dtype=np.float32) * np.float32(HIDDEN**-0.5)
    for layer in range(LAYERS):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = np.ones(HIDDEN, np.float32)
    tensors["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    for name, delta in (added or {}).items():
        tensors[f"{name}.weight"] = tensors[f"{name}.weight"] + delta
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder


def tiny_adapter(seed: int, rank: int = 4, only: tuple[str, ...] = ()) -> MadeAdapter:
    """An adapter of the model; of modules whose names end with one of `only`, if there are any."""
    shapes = {name: shape for name, shape in SHAPES.items() if not only or name.endswith(only)}
    return made_adapter(shapes, (HEADS, KV_HEADS), seed, rank)
