"""Tiny models with a head of their own that guesses further tokens, whose guesses transformers recorded.

`tests/families/record_mtp.py` records; a model's weights follow from the names and shapes of its tensors.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from mlxr.compiler.schedule.recipes import recipes
from mlxr.compiler.spec.family import layer_of
from mlxr.compiler.spec.mtp import Mtp
from mlxr.compiler.targets.source_graph import source_weights
from mlxr.loading.imported_model import import_model
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import open_tensor
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests.family_gguf import GROUPED, add_key, metadata_of, tensors_of
from mlxr_tests.family_oracle import EXACT
from mlxr_tests.multimodal_models import numbers
from mlxr_tests.storyteller import TINY

Config = dict[str, Any]
RECORDED = Path(__file__).parents[2] / "data" / "mtp_logits.json"
NUM_GUESSES = 3
NUM_LAYERS = 2
_BASE: Config = {
    "vocab_size": 61,
    "hidden_size": 96,
    "num_hidden_layers": NUM_LAYERS,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "tie_word_embeddings": False,
    "intermediate_size": 88,
    "moe_intermediate_size": 40,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
}
CONFIGS: dict[str, Config] = {
    "glm4_moe": _BASE
    | {
        "model_type": "glm4_moe",
        "architectures": ["Glm4MoeForCausalLM"],
        "num_key_value_heads": 2,
        "head_dim": 32,
        "partial_rotary_factor": 0.5,
        "use_qk_norm": True,
    },
    "deepseek_v3": _BASE
    | {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "q_lora_rank": 40,
        "kv_lora_rank": 48,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 40,
    },
}


_GGUF: Config = {
    "rope.dimension_count": 16,
    "expert_gating_func": 2,
    "leading_dense_block_count": 1,
    "expert_count": 6,
    "expert_used_count": 2,
    "expert_feed_forward_length": 40,
    "expert_shared_count": 1,
    "expert_weights_scale": 1.5,
    "expert_weights_norm": True,
}


@dataclass(frozen=True)
class Recorded:
    """What transformers gave.

    Attributes:
        reference: its version.
        shapes: of the tensors in files, by name.
        logits: of each guess after `prompt`: of the text, then of the text and the guesses before.
    """

    reference: str
    shapes: dict[str, list[int]]
    logits: list[list[float]]


def prompt() -> list[int]:
    """The text, with the token that the model chose last."""
    return [int(token) for token in np.random.RandomState(5).randint(1, _BASE["vocab_size"], 13)]


def weights(shapes: dict[str, list[int]]) -> dict[str, npt.NDArray[np.float32]]:
    """All weights of a model."""
    return {name: numbers(name, tuple(shape), 1.0) for name, shape in shapes.items()}


def save(case: str, folder: Path) -> Path:
    """The folder, with a model in it."""
    save_file(weights(load_recorded()[case].shapes), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIGS[case]))
    return folder


def save_gguf(folder: Path) -> Path:
    """The case glm4_moe as a GGUF file, f32, in the folder."""
    config = CONFIGS["glm4_moe"]
    save("glm4_moe", folder)
    path, of_head = folder / "glm4moe.gguf", {"block_count": config["num_hidden_layers"] + 1, "nextn_predict_layers": 1}
    writer = gguf.GGUFWriter(path, "glm4moe")
    for key, value in metadata_of(config, GROUPED | _GGUF | of_head).items():
        add_key(writer, f"glm4moe.{key}", value)
    writer.add_tokenizer_model("no_vocab")
    for name, array in tensors_of(folder, config, replace(EXACT, mtp=True)).items():
        writer.add_tensor(name, array.squeeze())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def save_tiny(folder: Path) -> Path:
    """The folder, with the tiny storyteller and a head of random numbers."""
    spec, weights = import_model(TINY, replace(EXACT, mtp=True))
    model = spec.model.model_copy(update={"mtp": Mtp()})
    mapped, tensors = MappedWeights(open_weights(weights)), dict[str, npt.NDArray[np.float32]]()
    for output in ("logits", "guesses"):
        own = spec.model_copy(update={"model": model, "output": output})
        for part in (part for weight in source_weights(own).weights for part in weight.parts):
            name = recipes(model, part.name)[0][0].tensor
            if layer_of(part.name) == model.num_layers:
                tensors[name] = numbers(name, part.shape, 1.0)
            else:
                tensors[name] = open_tensor(mapped, part).numbers(0, part.shape[0]).reshape(part.shape)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert model.attention is not None and model.mlp is not None and model.rope is not None, "a Llama"
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.mlp.intermediate_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.attention.num_heads,
        "num_key_value_heads": model.attention.num_kv_heads,
        "max_position_embeddings": model.context,
        "rms_norm_eps": model.norm.eps,
        "rope_theta": model.rope.theta,
        "tie_word_embeddings": model.tie_embeddings,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def load_recorded() -> dict[str, Recorded]:
    """The recorded results of all cases."""
    return {case: Recorded(**entry) for case, entry in json.loads(RECORDED.read_text()).items()}
