"""Folders of tiny models with tokenizers, which are converted to GGUF; and what llama.cpp says of the files."""

import json
from pathlib import Path
from typing import Any

from mlxr.quantise.folder_source import folder_source
from mlxr.quantise.mixtures import MIXTURES
from mlxr.quantise.requantise import Quantisation, write_quantised
from mlxr_tests.family_models import build_model, config_of, save_folder
from mlxr_tests.vocabularies import WORDS, byte_level

RECORDED = Path(__file__).parents[2] / "data/converted_logits.json"
VOCAB = 1504
PROMPT = [5, 700, 31, 12, 900, 44, 1003, 8, 77, 650, 3, 9]
TOP = 12
"""So many tokens are recorded, the most probable ones."""
CASES: dict[str, dict[str, Any]] = {
    **{
        case: {}
        for case in (
            *("llama", "llama, llama3 scaling", "llama, linear scaling", "llama, yarn", "mistral", "mixtral", "qwen2"),
            *("qwen2, output", "qwen3", "qwen3_moe", "gemma", "gemma3_text, seven layers", "phi3", "phi3, partial"),
            *("phi3, partial longrope", "olmo2, square", "smollm3", "granite", "stablelm", "stablelm, parallel"),
            *("exaone4, square", "glm4", "seed_oss", "exaone", "nemotron", "phi", "gpt2"),
        )
    },
    "gemma2": {"query_pre_attn_scalar": 32},
    "starcoder2": {"hidden_act": "gelu_pytorch_tanh"},
}
"""Cases of family_models, and what of their config.json is different."""


def make_folder(case: str, folder: Path) -> Path:
    """A case's folder, with a tokenizer of 1,500 tokens."""
    config = config_of(case) | {"vocab_size": VOCAB} | CASES[case]
    save_folder(build_model(config), config, folder)
    (folder / "tokenizer.json").write_text(byte_level(WORDS["llama-bpe"], ignore_merges=True).to_str())
    named = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


def convert(folder: Path, path: Path, format: str = "f32") -> Path:
    """The GGUF file of a folder."""
    write_quantised(folder_source(folder), path, Quantisation(MIXTURES[format]))
    return path
