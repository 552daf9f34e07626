"""The benchmark beside llama-bench: names of its files' tensors are llama.cpp's, and figures are medians of turns."""

import argparse
from pathlib import Path

import gguf
import llama_bench
import pytest
from peers.shape_files import FEW_LAYERS, SHAPES


@pytest.mark.parametrize("name", SHAPES)
def test_tensors_are_those_of_the_architecture(name: str) -> None:
    shape = SHAPES[name](FEW_LAYERS[name])
    (kind,) = (kind for kind, known in gguf.MODEL_ARCH_NAMES.items() if known == shape.architecture)
    known = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[kind]}
    names = [tensor.removesuffix(".weight").removesuffix(".bias") for tensor, _ in shape.tensors()]
    for layer in range(shape.layers):
        names = [tensor.replace(f"blk.{layer}.", "blk.{bid}.") for tensor in names]
    assert set(names) <= known


@pytest.mark.parametrize("layers", [6, 12, 24, 42])
def test_layers_of_gemma_that_share_keys_follow_a_global_one(layers: int) -> None:
    metadata = SHAPES["gemma-4-e4b"](layers).metadata
    own = layers - metadata["attention.shared_kv_layers"]
    assert not metadata["attention.sliding_window_pattern"][own - 1]


def test_figures_are_medians_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = iter([{"decode": 9.0}, {"decode": 60.0}, {"decode": 40.0}])
    theirs = iter([{"decode": 10.0}, {"decode": 30.0}, {"decode": 20.0}])
    monkeypatch.setattr(llama_bench, "_ours", lambda *_: next(ours))
    monkeypatch.setattr(llama_bench, "_theirs", lambda *_: next(theirs))
    found = llama_bench._measure(Path(), argparse.Namespace(turns=3))
    assert [*llama_bench._table("m", "q8_0", {"decode": found["decode"]})] == [
        "| m | q8_0 | 128 tokens after 512 | 40.0 | 20.0 | 2.00 x |"
    ]
