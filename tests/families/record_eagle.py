"""Records what heads of EAGLE-3 guess: needs torch and transformers.

    pip install torch transformers --target DIR
    PYTHONPATH=src:tests/support:DIR python tests/families/record_eagle.py

transformers computes the model, and the code below the head, as SafeAILab's EAGLE (eagle/model/cnets.py) and vLLM
(llama_eagle3.py) say. See `mlxr_tests.eagle_models` for the cases.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from mlxr_tests import eagle_models as cases

Weights = dict[str, torch.Tensor]


def guessed_logits(head: cases.Head, model: Any) -> list[list[float]]:
    """The logits of each guess after the prompt, each after the likeliest one before."""
    held = {name: torch.from_numpy(array) for name, array in head.tensors().items()}
    ids = cases.prompt()
    streams = model(torch.tensor([ids[:-1]]), output_hidden_states=True).hidden_states
    # transformers gives what enters each layer, and, last, what is behind the final norm.
    behind: list[torch.Tensor] = []
    handle = model.model.norm.register_forward_pre_hook(lambda _, given: behind.append(given[0]))
    model(torch.tensor([ids[:-1]]))
    handle.remove()
    taps = [(behind[0] if tap == cases.LAYERS else streams[tap])[0] for tap in head.taps]
    if head.tap_norm == "each":
        taps = [norm(head, tap, held[f"fc_norm.{i}.weight"]) for i, tap in enumerate(taps)]
    joined = torch.cat(taps, dim=-1)
    if head.tap_norm == "all":
        joined = norm(head, joined, held["input_norm.weight"])
    rows = joined @ held["fc.weight"].T
    table = held["embed_tokens.weight"] if head.embedding else model.model.embed_tokens.weight
    tokens, found = ids[1:], []
    for _ in range(cases.NUM_GUESSES):
        last = layer(head, held, table[torch.tensor(tokens)], rows)[-1:]
        normed = norm(head, last, held["norm.weight"])
        logits = (normed @ held["lm_head.weight"].T)[0]
        found.append([float(np.format_float_positional(np.float32(x), unique=True)) for x in logits.tolist()])
        best = int(logits.argmax())
        tokens.append(int(head.ids()[best]) if head.guessed < cases.VOCAB else best)
        rows = torch.cat([rows, normed if head.norm_rows else last])
    return found


def layer(head: cases.Head, held: Weights, embedded: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """What the head's layer makes of embeddings of tokens and the rows before them, all at once."""
    config = head.layer

    def weight(name: str) -> torch.Tensor:
        return held[f"{head.prefix}{name}.weight"]

    normed = norm(head, rows, weight("hidden_norm"))
    residual = normed if head.norm_residual else rows
    both = torch.cat([norm(head, embedded, weight("input_layernorm")), normed], dim=-1)
    size = config["head_dim"]
    q, k, v = ((both @ weight(f"self_attn.{r}_proj").T).unflatten(-1, (-1, size)).transpose(0, 1) for r in "qkv")
    q, k = rotated(config, q), rotated(config, k)
    group = q.shape[0] // k.shape[0]
    scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) * size**-0.5
    hidden = torch.full(scores.shape[1:], float("-inf")).triu(1)
    mixed = (scores + hidden).softmax(-1) @ v.repeat_interleave(group, 0)
    x = residual + mixed.transpose(0, 1).flatten(1) @ weight("self_attn.o_proj").T
    y = norm(head, x, weight("post_attention_layernorm"))
    gated = nn.functional.silu(y @ weight("mlp.gate_proj").T) * (y @ weight("mlp.up_proj").T)
    return x + gated @ weight("mlp.down_proj").T


def norm(head: cases.Head, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """An rms norm."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + head.layer["rms_norm_eps"]) * weight


def rotated(config: cases.Config, x: torch.Tensor) -> torch.Tensor:
    """Heads [heads, tokens, head_dim], whose halves are rotated."""
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[1]), config["rope_theta"] ** -(torch.arange(half) / half))
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


def main() -> None:
    """Records all cases."""
    with tempfile.TemporaryDirectory() as folder:
        target = cases.save_target(Path(folder))
        model = transformers.AutoModelForCausalLM.from_pretrained(
            target, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        reference = f"transformers {transformers.__version__}, torch {torch.__version__}"
        with torch.no_grad():
            held = {
                name: {"reference": reference, "logits": guessed_logits(head, model)}
                for name, head in cases.HEADS.items()
            }
    lines = [f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in held.items()]
    cases.RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
