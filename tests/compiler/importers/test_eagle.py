"""config.json of published heads of EAGLE-3, of the programs that write them: which layers they read, and how."""

from typing import Any

import pytest

from mlxr.compiler.errors import SpecError
from mlxr.compiler.importers.eagle import EagleFiles, eagle_from_config
from mlxr.compiler.importers.tensors import TensorFact

Config = dict[str, Any]
_USUAL: Config = {"attention_bias": False, "hidden_act": "silu", "num_hidden_layers": 1, "tie_word_embeddings": False}
_SPECFORGE = _USUAL | {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": 32000}
PUBLISHED: dict[str, Config] = {
    # SpecForge, configs/qwen3-30B-A3B-eagle3.1.json
    "qwen3-30b-a3b": _SPECFORGE
    | {"fc_norm": True, "norm_output": True, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 12288}
    | {"max_position_embeddings": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "rms_norm_eps": 1e-06}
    | {"rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": None, "vocab_size": 151936},
    # SpecForge, configs/qwen2-5-vl-eagle3.json
    "qwen2.5-vl-7b": _SPECFORGE
    | {"head_dim": 128, "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 2048}
    | {"num_attention_heads": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000}
    | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "sliding_window": 32768}
    | {"use_sliding_window": False, "vocab_size": 152064},
    # SpecForge, configs/gemma3-27b-eagle3.json
    "gemma3-27b": _SPECFORGE
    | {"head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504, "max_position_embeddings": 4096}
    | {"num_attention_heads": 32, "num_key_value_heads": 16, "rms_norm_eps": 1e-06, "rope_theta": 1000000}
    | {"sliding_window": 512, "use_sliding_window": False, "vocab_size": 262208, "draft_vocab_size": 262208}
    | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 29, 61]}, "reuse_target_lm_head": True},
    # RedHatAI/gemma-4-31B-it-speculator.eagle3
    "gemma-4-31b": {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": 32000,
        "eagle_aux_hidden_state_layer_ids": [2, 30, 57],
        "embed_requires_grad": False,
        "norm_before_fc": False,
        "norm_before_residual": True,
        "speculators_config": {"algorithm": "eagle3", "default_proposal_method": "greedy"},
        "speculators_model_type": "eagle3",
        "target_hidden_size": None,
        "transformer_layer_config": _USUAL
        | {"head_dim": 256, "hidden_size": 5376, "intermediate_size": 21504, "max_position_embeddings": 262144}
        | {"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 16, "rms_norm_eps": 1e-06}
        | {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "vocab_size": 262144},
    },
}


def found(config: Config, **changes: Any) -> EagleFiles:
    """What is read of a config.json with the tensors that it describes."""
    layer = config.get("transformer_layer_config", config)
    hidden, kv = layer["hidden_size"], layer["num_key_value_heads"] * layer["head_dim"]
    shapes = {
        "fc.weight": (hidden, 3 * hidden),
        "lm_head.weight": (config["draft_vocab_size"], hidden),
        "norm.weight": (hidden,),
        "layers.0.hidden_norm.weight": (hidden,),
        "layers.0.self_attn.q_proj.weight": (layer["num_attention_heads"] * layer["head_dim"], 2 * hidden),
        "layers.0.self_attn.k_proj.weight": (kv, 2 * hidden),
    }
    tensors = {f"eagle.0.{name}": TensorFact(shape, "BF16") for name, shape in shapes.items()}
    ids = {"eagle.0.d2t": TensorFact((config["draft_vocab_size"],), "I64")}
    return eagle_from_config(config | changes, tensors | ids, "config.json")


@pytest.mark.parametrize(
    ("name", "taps", "section"),
    [
        ("qwen3-30b-a3b", None, {"tap_norm": "each", "norm_rows": True, "norm_residual": False}),
        ("qwen2.5-vl-7b", None, {"tap_norm": None, "norm_rows": False, "norm_residual": False}),
        ("gemma3-27b", (2, 30, 62), {"vocab_size": 262208}),
        ("gemma-4-31b", (2, 30, 57), {"norm_residual": True, "norm_rows": False, "tap_norm": None}),
    ],
)
def test_published_heads(name: str, taps: tuple[int, ...] | None, section: Config) -> None:
    """Where config.json names layers under eagle_config, they are those behind which the model is read."""
    files = found(PUBLISHED[name])
    layer = PUBLISHED[name].get("transformer_layer_config", PUBLISHED[name])
    assert files.taps == taps
    assert files.hidden_size == layer["hidden_size"] and files.vocab_size == layer["vocab_size"]
    assert {key: files.section[key] for key in section} == section
    theta = (layer.get("rope_parameters") or layer)["rope_theta"]
    assert files.section["rope"]["theta"] == theta and "scaling" not in files.section["rope"]
    assert files.section["attention"]["head_dim"] == layer["head_dim"]
    assert set(files.formats.values()) == {"bf16"} and files.formats.keys() >= {"eagle.fc", "attention.q"}


def test_speculators_that_say_nothing_of_the_residual_normalise_it() -> None:
    """As vLLM reads them."""
    config = PUBLISHED["gemma-4-31b"]
    assert found({key: value for key, value in config.items() if key != "norm_before_residual"}).section[
        "norm_residual"
    ]
    assert not found(config, norm_before_residual=False).section["norm_residual"]


def test_layers_of_other_kinds_are_refused() -> None:
    config = PUBLISHED["gemma-4-31b"]
    layer = config["transformer_layer_config"] | {"model_type": "deepseek_v3"}
    with pytest.raises(SpecError, match='model_type is "deepseek_v3"; heads whose layer is one of llama are'):
        found(config, transformer_layer_config=layer)
    with pytest.raises(SpecError, match=r"transformer_layer_config is 1; expected a section"):
        eagle_from_config({"transformer_layer_config": 1}, {}, "config.json")
    flat = {f"eagle.0.{name}.weight": TensorFact((), "BF16") for name in ("fc", "layers.0.self_attn.q_proj")}
    with pytest.raises(SpecError, match=r"are matrices, and one has shape \[\]"):
        eagle_from_config(PUBLISHED["qwen3-30b-a3b"], flat, "config.json")
    with pytest.raises(SpecError, match=r"no fc\.weight or no q_proj"):
        eagle_from_config(PUBLISHED["qwen3-30b-a3b"], {}, "config.json")
