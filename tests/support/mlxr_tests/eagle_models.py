"""Tiny models, and heads of other files for them (EAGLE-3), whose guesses a reference in torch recorded.

`tests/families/record_eagle.py` records; weights follow from the names and shapes of tensors.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from mlxr_tests.multimodal_models import numbers

Config = dict[str, Any]
Arrays = dict[str, npt.NDArray[Any]]
RECORDED = Path(__file__).parents[2] / "data" / "eagle_logits.json"
NUM_GUESSES = 3
VOCAB, HIDDEN, LAYERS = 61, 96, 6
TARGET: Config = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "tie_word_embeddings": False,
    "intermediate_size": 88,
}
_LAYER: Config = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 104,
    "max_position_embeddings": 48,
    "rms_norm_eps": 1e-6,
    "rope_theta": 900.0,
    "tie_word_embeddings": False,
    "vocab_size": VOCAB,
}


@dataclass(frozen=True)
class Head:
    """A head, and what a reference has to know of it.

    Attributes:
        config: its config.json.
        taps: layers before which the model is read.
        guessed: tokens that it may guess.
        hidden: its width.
        prefix: of its layer's tensors.
        embedding: whether it has a table.
        tap_norm, norm_residual, norm_rows: as in specs.
        model_hidden, vocab: width and vocabulary of the model.
    """

    config: Config
    taps: tuple[int, ...]
    guessed: int = VOCAB
    hidden: int = HIDDEN
    prefix: str = "midlayer."
    embedding: bool = False
    tap_norm: str | None = None
    norm_residual: bool = False
    norm_rows: bool = False
    model_hidden: int = HIDDEN
    vocab: int = VOCAB

    @property
    def layer(self) -> Config:
        """The keys of its layer."""
        section: Config = self.config.get("transformer_layer_config", self.config)
        return section

    def shapes(self) -> dict[str, list[int]]:
        """Its tensors of floats."""
        layer, hidden = self.layer, self.hidden
        heads, kv = (layer[f"num_{name}_heads"] * layer["head_dim"] for name in ("attention", "key_value"))
        inner = layer["intermediate_size"]
        shapes = {f"self_attn.{role}_proj": [size, 2 * hidden] for role, size in (("q", heads), ("k", kv), ("v", kv))}
        shapes |= {"mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden], "mlp.down_proj": [hidden, inner]}
        shapes |= {"self_attn.o_proj": [hidden, heads], "hidden_norm": [hidden]}
        shapes |= {"input_layernorm": [hidden], "post_attention_layernorm": [hidden]}
        shapes = {f"{self.prefix}{name}.weight": shape for name, shape in shapes.items()}
        shapes |= {
            "fc.weight": [hidden, 3 * self.model_hidden],
            "norm.weight": [hidden],
            "lm_head.weight": [self.guessed, hidden],
        }
        if self.embedding:
            shapes["embed_tokens.weight"] = [self.vocab, hidden]
        if self.tap_norm == "all":
            shapes["input_norm.weight"] = [3 * self.model_hidden]
        if self.tap_norm == "each":
            shapes |= {f"fc_norm.{i}.weight": [self.model_hidden] for i in range(3)}
        return shapes

    def tensors(self) -> Arrays:
        """All of its tensors: of a smaller vocabulary, also which tokens these are."""
        held: Arrays = {name: numbers(f"head {name}", tuple(shape), 1.0) for name, shape in self.shapes().items()}
        if self.guessed < self.vocab:
            ids = self.ids()
            held |= {"d2t": ids - np.arange(self.guessed), "t2d": np.isin(np.arange(self.vocab), ids)}
        return held

    def ids(self) -> npt.NDArray[np.int64]:
        """The model's ids of the tokens that it may guess."""
        return np.sort(np.random.RandomState(3).permutation(self.vocab)[: self.guessed]).astype(np.int64)


OF_TINY = Head(
    _LAYER
    | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": 256,
        "vocab_size": 640,
        "draft_vocab_size": 320,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
    },
    taps=(0, 1, 2),
    guessed=320,
    hidden=256,
    model_hidden=256,
    vocab=640,
)
"""A head for `mlxr_tests.storyteller.TINY`."""
HEADS: dict[str, Head] = {
    "eagle": Head(
        _LAYER | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 40},
        taps=(2, 3, 3),
        guessed=40,
    ),
    "speculators": Head(
        {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "draft_vocab_size": 32,
            "norm_before_residual": True,
            "norm_before_fc": True,
            "eagle_aux_hidden_state_layer_ids": [0, 2, 6],
            "transformer_layer_config": _LAYER | {"hidden_size": 64},
        },
        taps=(0, 2, 6),
        guessed=32,
        hidden=64,
        prefix="layers.0.",
        embedding=True,
        tap_norm="all",
        norm_residual=True,
    ),
    "modelopt": Head(
        _LAYER
        | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 4], "use_aux_hidden_state": True},
            "fc_norm": True,
            "norm_output": True,
        },
        taps=(1, 3, 5),
        tap_norm="each",
        norm_rows=True,
    ),
}


def prompt() -> list[int]:
    """The text, with the token that the model chose last."""
    return [int(token) for token in np.random.RandomState(5).randint(1, VOCAB, 13)]


def target_tensors() -> Arrays:
    """The weights of the model for which heads guess."""
    kv = TARGET["num_key_value_heads"] * TARGET["head_dim"]
    inner = TARGET["intermediate_size"]
    layer = {"self_attn.q_proj": [HIDDEN, HIDDEN], "self_attn.k_proj": [kv, HIDDEN], "self_attn.v_proj": [kv, HIDDEN]}
    layer |= {"self_attn.o_proj": [HIDDEN, HIDDEN], "mlp.gate_proj": [inner, HIDDEN], "mlp.up_proj": [inner, HIDDEN]}
    layer |= {"mlp.down_proj": [HIDDEN, inner], "input_layernorm": [HIDDEN], "post_attention_layernorm": [HIDDEN]}
    names = {f"model.layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in layer.items()}
    names |= {"model.embed_tokens": [VOCAB, HIDDEN], "lm_head": [VOCAB, HIDDEN], "model.norm": [HIDDEN]}
    return {f"{name}.weight": numbers(name, tuple(shape), 1.0) for name, shape in names.items()}


def save_target(folder: Path) -> Path:
    """The folder, with the model."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(target_tensors(), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(TARGET))
    return folder


def save_head(head: Head, folder: Path, config: Config | None = None) -> Path:
    """The folder, with a head, whose config.json may be another one."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(head.tensors(), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(head.config if config is None else config))
    return folder


def load_recorded() -> dict[str, npt.NDArray[np.float32]]:
    """By head, the logits of each guess after `prompt`: of the text, then of the text and the guesses before."""
    held = json.loads(RECORDED.read_text())
    return {name: np.array(entry["logits"], np.float32) for name, entry in held.items()}
