"""Trains a head of its own (multi-token prediction) for the bundled storyteller: a model to measure `--mtp` with.

    pip install torch
    python benchmarks/train_head.py FOLDER [--steps 500] [--stories 40]

The model tells stories, and a head learns to guess as the model itself would go on: from the row after the final norm
and the next token, and from its own row then. It begins as a copy of the last layer. FOLDER becomes a Hugging Face
folder in bf16 with the model and its head, as DeepSeek's files have one. It takes some minutes of two cores.

With `--stories 1 --beginnings 1 --steps 150`, there is one: "Once upon a time", as the model goes on greedily. The head
comes to know it, and guesses well where it is told again. With `--steps 0 --noise`, the head is random and guesses
nothing: there, `--mtp` must cost next to nothing.
"""

import argparse
import json
import math
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

import mlxr
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.schedule.recipes import recipes
from mlxr.compiler.spec.model import Model
from mlxr.compiler.spec.mtp import Mtp
from mlxr.compiler.targets.source_graph import source_weights
from mlxr.loading.imported_model import import_model
from mlxr.loading.resolve import resolve_spec
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import open_tensor
from mlxr.runtime.weights.open_weights import open_weights

Weights = dict[str, torch.Tensor]
_BEGINNINGS = (
    *("Once upon a time", "One day", "Lily", "Tom and his dog", "The little bird", "In the forest", "A big red ball"),
    *("Mia wanted", "There was a boy", "The cat", "Every morning", "It was raining", "Sam and Anna", "The old tree"),
    *("A tiny mouse", "Mom said"),
)
_LENGTH = 128
_STORIES = 8


def main() -> int:
    """Trains and writes."""
    parser = argparse.ArgumentParser(description="Train a head that guesses for the bundled storyteller.")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=500, help="of training (500)")
    parser.add_argument("--stories", type=int, default=40, help="from each beginning (40)")
    parser.add_argument("--beginnings", type=int, default=len(_BEGINNINGS), help="how many of them (all)")
    parser.add_argument("--noise", action="store_true", help="begin with random numbers")
    args = parser.parse_args()
    torch.manual_seed(0)
    _, weights = resolve_spec("storyteller")
    assert weights is not None, "its weights are bundled"
    spec, _ = import_model(weights, ImportOptions())
    model, numbers = spec.model, _read(weights)
    head = _first_head(model, numbers, is_random=args.noise)
    _write(args.folder, model, numbers | head, weights)
    if args.steps:  # the stories are those of the folder's own model: its weights are rounded, which changes stories
        stories = _stories(args.folder, args.stories, args.beginnings)
        head = _train(model, numbers, head, stories, args.steps)
        _write(args.folder, model, numbers | head, weights)
    _say(f"wrote {args.folder}: mlxr run {args.folder} --mtp on")
    return 0


def _read(path: Path) -> Weights:
    """All tensors as f32 whose numbers bf16 has, by their canonical names."""
    spec, _ = import_model(path, ImportOptions(activation_dtype="f32"))
    mapped = MappedWeights(open_weights(path))
    parts = [part for weight in source_weights(spec).weights for part in weight.parts]
    return {
        part.name: torch.from_numpy(open_tensor(mapped, part).numbers(0, part.shape[0]).reshape(part.shape).copy())
        .bfloat16()
        .float()
        for part in parts
    }


def _first_head(model: Model, weights: Weights, *, is_random: bool) -> Weights:
    """A copy of the last layer, which reads the row as the last layer would, and a little of the embedding."""
    own, last, hidden = f"layers.{model.num_layers}.", f"layers.{model.num_layers - 1}.", model.hidden_size
    head = {name.replace(last, own): array for name, array in weights.items() if name.startswith(last)}
    join, ones = torch.randn((hidden, 2 * hidden)) * 0.02, torch.ones(hidden)
    if is_random:
        head = {name: torch.randn(a.shape) * 0.05 if a.ndim > 1 else torch.ones(a.shape) for name, a in head.items()}
    else:
        join[:, hidden:] += torch.eye(hidden) * 0.5
    names = {"token_norm": ones, "hidden_norm": ones, "norm": weights["final_norm"], "join": join}
    return head | {f"{own}mtp.{name}": array for name, array in names.items()}


def _stories(folder: Path, count: int, beginnings: int) -> torch.Tensor:
    """Stories by a folder's model, as token ids: [stories, length + 1]."""
    texts, begin = [], time.perf_counter()
    with mlxr.Engine(folder, host="cpu", max_sequences=16, mtp="off") as engine:
        prompts = [engine.model.encode(text) for text in _BEGINNINGS[:beginnings]]
        for number in range(count):
            how = {"temperature": 0.0 if number == 0 else 0.8, "seed": number}
            done = engine.generate_all(prompts, mlxr.Sampling(max_tokens=3 * _LENGTH, ignore_eos=True, **how))
            texts += [[*prompt, *answer.token_ids] for prompt, answer in zip(prompts, done, strict=True)]
    tokens = [token for text in texts for token in text]
    rows = len(tokens) // (_LENGTH + 1)
    _say(f"{len(texts)} stories, {len(tokens)} tokens in {time.perf_counter() - begin:.0f} s")
    return torch.from_numpy(np.array(tokens[: rows * (_LENGTH + 1)], np.int64).reshape(rows, -1))


def _layer(model: Model, weights: Weights, index: int, x: torch.Tensor) -> torch.Tensor:
    """One layer of the model or the head: x [batch, tokens, hidden]."""
    at, a = f"layers.{index}.", model.attention
    batch, tokens, _ = x.shape
    y = _norm(model, x, weights[f"{at}attention.norm"])
    counts = {"q": a.num_heads, "k": a.num_kv_heads, "v": a.num_kv_heads}
    q, k, v = (
        (y @ weights[f"{at}attention.{role}"].T).reshape(batch, tokens, count, a.head_dim).transpose(1, 2)
        for role, count in counts.items()
    )
    mixed = nn.functional.scaled_dot_product_attention(
        _rotated(model, q), _rotated(model, k), v, is_causal=True, enable_gqa=True
    )
    x = x + mixed.transpose(1, 2).reshape(batch, tokens, -1) @ weights[f"{at}attention.o"].T
    y = _norm(model, x, weights[f"{at}mlp.norm"])
    gated = nn.functional.silu(y @ weights[f"{at}mlp.gate"].T) * (y @ weights[f"{at}mlp.up"].T)
    return x + gated @ weights[f"{at}mlp.down"].T


def _norm(model: Model, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return nn.functional.rms_norm(x, weight.shape, weight, model.norm.eps)


def _rotated(model: Model, x: torch.Tensor) -> torch.Tensor:
    """Heads [batch, heads, tokens, head_dim], whose halves are rotated."""
    assert model.rope is not None, "it rotates"
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[2]), model.rope.theta ** -(torch.arange(half) / half))
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _guess(model: Model, weights: Weights, head: Weights, rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The head's rows after its norm, from rows [batch, tokens, hidden] and the tokens that follow each."""
    at = f"layers.{model.num_layers}.mtp."
    embedded = _norm(model, weights["embedding"][tokens], head[f"{at}token_norm"])
    both = torch.cat([embedded, _norm(model, rows, head[f"{at}hidden_norm"])], dim=-1)
    return _norm(model, _layer(model, head, model.num_layers, both @ head[f"{at}join"].T), head[f"{at}norm"])


def _loss(model: Model, weights: Weights, head: Weights, rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """How far the head's first two guesses are from the model's own next tokens."""
    guessed, total = rows, torch.tensor(0.0)
    for depth in (1, 2):
        # Row p, after token p, and token p + depth give the row after which token p + depth + 1 is guessed.
        guessed = _guess(model, weights, head, guessed[:, : tokens.shape[1] - depth], tokens[:, depth:])
        wanted = (rows[:, depth:] @ weights["embedding"].T).softmax(-1)
        total = total + nn.functional.cross_entropy(
            (guessed @ weights["embedding"].T).flatten(0, 1), wanted.flatten(0, 1)
        )
    return total


def _train(model: Model, weights: Weights, head: Weights, stories: torch.Tensor, steps: int) -> Weights:
    """The head after so many steps, each of some stories."""
    head = {name: array.clone().requires_grad_() for name, array in head.items()}
    adam = torch.optim.Adam(head.values(), lr=1e-3)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps, 1e-5)
    begin = time.perf_counter()
    for number in range(steps):
        tokens = stories[torch.randperm(len(stories))[:_STORIES]]
        with torch.no_grad():
            x = weights["embedding"][tokens]
            for index in range(model.num_layers):
                x = _layer(model, weights, index, x)
            rows = _norm(model, x, weights["final_norm"])
        value = _loss(model, weights, head, rows, tokens)
        adam.zero_grad()
        value.backward()
        adam.step()
        rates.step()
        if not math.isfinite(value.item()):
            raise ValueError("the loss is not finite")
        if number % 20 == 0 or number == steps - 1:
            _say(f"step {number}: loss {value.item():.3f}, {time.perf_counter() - begin:.0f} s")
    return {name: array.detach() for name, array in head.items()}


def _write(folder: Path, model: Model, weights: Weights, source: Path) -> None:
    """Writes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with_head = model.model_copy(update={"mtp": Mtp()})
    names = {recipes(with_head, name)[0][0].tensor: array for name, array in weights.items()}
    tensors = {name: array.to(torch.bfloat16).contiguous() for name, array in names.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert model.rope is not None, "it rotates"
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.mlp.intermediate_size,
        "num_hidden_layers": model.num_layers,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": model.attention.num_heads,
        "num_key_value_heads": model.attention.num_kv_heads,
        "max_position_embeddings": model.context,
        "rms_norm_eps": model.norm.eps,
        "rope_theta": model.rope.theta,
        "tie_word_embeddings": model.tie_embeddings,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    shutil.copy(source.with_name("tokenizer.model"), folder)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
