"""Files of tiny models with a head of their own: a GGUF file, and the tiny storyteller with a random head."""

import json
from dataclasses import replace
from pathlib import Path

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
from mlxr_tests.mtp_models import CONFIGS, Config, save
from mlxr_tests.multimodal_models import numbers
from mlxr_tests.storyteller import TINY

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
