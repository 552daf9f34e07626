"""MLXR against mlx-lm on one folder, in turns: shapes of published models, in mlx-lm's 4 bits.

    python benchmarks/mlx_lm_bench.py [--models qwen1.5-moe-a2.7b,glm-4.7-flash] [--layers 8] [--folder DIR]

A folder has random weights, which mlx-lm's own classes and quantiser make of a published config.json with fewer layers
and words. Each engine has a process: `mlxr.load` and `Model.start`, mlx-lm's `load` and `stream_generate`, without
options. They answer in turns, prompt by prompt: tokens per second of decode after 512 tokens, of prompts of 512, and of
prompts of 300 to 700 tokens whose lengths the processes have not seen. Figures are medians. Prints a table.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from peers.tokenizer import write_tokenizer
from peers.worker import Worker, random_tokens

from mlxr.runtime.machine.threads import usable_cpus

_PROMPT, _DECODED, _LENGTHS, _VOCAB = 512, 128, (300, 700), 32768
_TURNS, _UNSEEN, _WARM = 5, 12, 3
_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "qwen1.5-moe-a2.7b": {
        "model_type": "qwen2_moe",
        "architectures": ["Qwen2MoeForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "decoder_sparse_step": 1,
        "norm_topk_prob": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
    },
    "glm-4.7-flash": {
        "model_type": "glm4_moe_lite",
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 10240,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "n_routed_experts": 64,
        "n_shared_experts": 1,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1536,
        "first_k_dense_replace": 1,
        "q_lora_rank": 768,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.8,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "partial_rotary_factor": 1.0,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0,
    },
    "gemma-4-e4b": {
        "model_type": "gemma4",
        "architectures": ["Gemma4ForConditionalGeneration"],
        "vocab_size": _VOCAB,
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "global_head_dim": 512,
            "sliding_window": 512,
            "hidden_size_per_layer_input": 256,
            "vocab_size_per_layer_input": _VOCAB,
            "use_double_wide_mlp": False,
            "attention_k_eq_v": False,
            "enable_moe_block": False,
            "hidden_activation": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-6,
            "final_logit_softcapping": 30.0,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": 1e6,
                    "partial_rotary_factor": 0.25,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            "tie_word_embeddings": True,
        },
        "tie_word_embeddings": True,
    },
    "qwen3.5-4b": {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": {
            "model_type": "qwen3_5_text",
            "hidden_size": 2560,
            "intermediate_size": 9216,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "full_attention_interval": 4,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e7,
                "partial_rotary_factor": 0.25,
                "mrope_interleaved": True,
                "mrope_section": [11, 11, 10],
            },
            "tie_word_embeddings": True,
        },
        "tie_word_embeddings": True,
    },
}


def main() -> int:
    """Measures and prints."""
    args = _arguments()
    with tempfile.TemporaryDirectory() as temporary:
        print("| model | work | MLXR | mlx-lm | ratio |\n|---|---|---|---|---|", flush=True)
        for name in args.models.split(","):
            folder = Path(args.folder or temporary) / f"{name}-{args.layers}-4bit"
            write_folder(_CONFIGS[name], args.layers, folder)
            for work, (ours, theirs) in _measure(folder).items():
                print(f"| {name} | {work} | {ours:,.1f} | {theirs:,.1f} | {ours / theirs:.2f} x |", flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare MLXR with mlx-lm on folders of published shapes.")
    parser.add_argument("--models", default=",".join(_CONFIGS), help=f"shapes ({', '.join(_CONFIGS)})")
    parser.add_argument("--layers", type=int, default=8, help="layers of each (8)")
    parser.add_argument("--folder", metavar="DIR", help="where folders are kept (a temporary one)")
    return parser.parse_args()


def write_folder(config: Mapping[str, Any], layers: int, folder: Path) -> None:
    """Writes a model of so many layers and random weights in 4 bits, as mlx-lm saves it, if it is not there."""
    import mlx.core as mx
    from mlx_lm.utils import _get_classes, quantize_model, save_config, save_model

    if (folder / "config.json").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    ours: dict[str, Any] = {"vocab_size": _VOCAB, "max_position_embeddings": 8192, "bos_token_id": 1, "eos_token_id": 2}
    ours["num_hidden_layers"] = layers
    if config["model_type"] == "gemma4":  # every sixth layer is global; of 42, the last 18 have no keys of their own
        kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(layers)]
        ours |= {"layer_types": kinds, "num_kv_shared_layers": max(0, layers - max(6, layers * 24 // 42 // 6 * 6))}
    whole = dict(config) | ({"text_config": config["text_config"] | ours} if "text_config" in config else ours)
    model_class, args_class = _get_classes(whole)
    mx.random.seed(1)
    model = model_class(args_class.from_dict(whole))
    model.set_dtype(mx.bfloat16)
    model, whole = quantize_model(model, whole, 64, 4)
    save_model(folder, model)
    write_tokenizer(folder, _VOCAB)
    save_config(whole, folder / "config.json")


def _measure(folder: Path) -> dict[str, tuple[float, float]]:
    """Tokens per second of MLXR and of mlx-lm."""
    with tempfile.TemporaryFile("w+") as log:
        threads = usable_cpus()
        engines = [Worker(module, threads, log) for module in ("peers.user_mlxr", "peers.user_mlx_lm")]
        for engine in engines:
            engine.ask("load", source=str(folder), batch=1, threads=threads, processes=len(engines))
        lengths = np.random.default_rng(1).permutation(np.arange(*_LENGTHS))[:_UNSEEN].tolist()
        rates: dict[str, list[list[float]]] = {}
        for work, prompt, decoded in _work(lengths):
            for engine, seen in zip(engines, rates.setdefault(work, [[], []]), strict=True):
                reply = engine.ask("stream", prompts=[prompt], tokens=decoded)
                decodes = work.startswith("decode")
                seen.append(decoded / reply["next_seconds"] if decodes else len(prompt) / reply["first_seconds"])
    rates.pop("", None)
    return {work: (statistics.median(ours), statistics.median(theirs)) for work, (ours, theirs) in rates.items()}


def _work(lengths: list[int]) -> Iterator[tuple[str, list[int], int]]:
    """What is asked: its row, a prompt, and tokens after the first. What warms up has no row."""
    seed = 0
    for work, sizes, decoded in (
        ("", [_PROMPT] * _WARM, _DECODED),
        (f"prompts of unseen lengths {_LENGTHS[0]} to {_LENGTHS[1]}", lengths, 1),
        (f"prompts of {_PROMPT}", [_PROMPT] * _TURNS, 1),
        (f"decode, {_DECODED} tokens after {_PROMPT}", [_PROMPT] * _TURNS, _DECODED),
    ):
        for size in sizes:
            seed += 1
            yield work, random_tokens(size, _VOCAB, seed), decoded


if __name__ == "__main__":
    sys.exit(main())
