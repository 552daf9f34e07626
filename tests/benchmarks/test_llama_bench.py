"""The benchmark beside llama.cpp: its files' tensors are those that they should be; a row that fails loses no other."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import gguf
import llama_bench
import pytest
from peers.beside_llama import Beside, FailedError, Figure, Programs
from peers.shape_files import FEW_LAYERS, SHAPES, PublishedShape
from peers.shape_writer import FORMATS, tensor_type, write_shape


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


class OneEngine(Beside):
    """Its processes take seconds to answer, and only one row of theirs can be measured."""

    def _ours(self, names: list[str]) -> Mapping[str, Figure]:
        self.asked.append(names)
        return {name: Figure(float(len(self.asked)), step_bytes=8 * 10**9, cpu_ms=0.12) for name in names}

    def _theirs(self, names: list[str]) -> Mapping[str, Figure]:
        if "decode" not in names or len(names) > 1:
            raise FailedError("out of memory")
        return {"decode": Figure(2.0)}

    asked: list[list[str]]


def test_a_row_that_fails_loses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_bench, "copy_bytes_per_second", lambda: 32e9)
    programs = Programs("llama-bench", None, gpu=True, threads=1)
    beside = OneEngine(Path("m.gguf"), programs)
    beside.asked = []
    args = argparse.Namespace(turns=3, rows="decode,decode-3500,unseen,16", gpu=True)
    rows = llama_bench._measure("m", "bf16", beside, args)
    assert beside.asked[:2] == [["decode", "decode-3500", "unseen"], ["16"]], "rows of one sequence share a process"
    assert len(beside.asked) == 6
    assert [llama_bench.line(row) for row in rows[:2]] == [
        "| m | bf16 | 128 tokens after 512 | 3 | 2 | 1.50 x |  | 75 % | 120 us |",
        "| m | bf16 | 128 tokens after 3500 | 3 | failed |  |  | 75 % | 120 us |",
    ]
    failed = {(name, "llama.cpp") for name in ("decode-3500", "unseen", "16")}
    assert beside.failures.keys() == failed, "and none of them is tried again"


def test_a_written_file_is_read_as_it_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"attn_norm.weight": (512,), "attn_v.weight": (70, 512), "ffn_up.weight": (3, 5, 96)}
    small = PublishedShape("llama", 1, 512, {}, lambda _: sizes, vocab=400)
    monkeypatch.setitem(cast("dict[str, object]", SHAPES), "small", lambda _: small)
    for format_name, kinds in FORMATS.items():
        tensors = gguf.GGUFReader(write_shape("small", format_name, tmp_path, 1)).tensors
        assert [(t.name, tuple(int(n) for n in reversed(t.shape))) for t in tensors] == [*small.tensors()]
        assert [t.tensor_type.name for t in tensors[:3]] == [kinds[0], "F32", kinds[1]]
        for tensor in tensors:
            numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert (numbers == 1).all() if "norm" in tensor.name else 0.01 < numbers.std() < 0.03, tensor.name


def test_types_are_those_of_llama_cpp() -> None:
    """22 layers have the types that `llama-quantize` gives a TinyLlama in Q4_K_M."""
    layers = (0, 1, 4, 7, 10, 13, 16, 19, 20, 21)
    expected = {"output.weight", *(f"blk.{i}.{name}.weight" for i in layers for name in ("attn_v", "ffn_down"))}
    tensors = SHAPES["tinyllama"](22).tensors()
    assert {name for name, dims in tensors if tensor_type(name, dims, "q4_k_m", 22) == "Q6_K"} == expected
