"""The benchmark of a mixture of experts: its model is one that MLXR reads, and its ratios are of medians."""

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace

import expert_peers
import pytest
from peers.models import ExpertShape, write_gguf

from mlxr.compiler.importers.imported import ImportOptions
from mlxr.loading.compare_spec import check_tensors_first
from mlxr.loading.imported_model import import_model


def test_its_model_is_a_qwen2_moe(tmp_path: Path) -> None:
    shape = ExpertShape("tiny", 64, 1, 2, 1, 96, 400, 32, experts=3, per_token=2, expert_width=32)
    write_gguf(shape, "bf16", tmp_path / "tiny.gguf")
    spec, _ = import_model(tmp_path / "tiny.gguf", ImportOptions())
    experts = spec.model.mlp.experts
    assert experts is not None and experts.shared is not None and experts.shared.gate
    assert (spec.model.mlp.intermediate_size, experts.count, experts.shared.intermediate_size) == (32, 3, 96)
    check_tensors_first(spec, tmp_path / "tiny.gguf")


def test_ratios(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ways = [[{"prompt": 9.0, "decode": 1.0}] * 2, [{"prompt": 10.0, "decode": 4.0}, {"prompt": 30.0, "decode": 2.0}]]
    ways += [[{"prompt": 20.0, "decode": 4.0}, {"prompt": 10.0, "decode": 2.0}]]
    own = [{"prompt": 1.0, "decode": 1.0}, {"prompt": 60.0, "decode": 6.0}, {"prompt": 40.0, "decode": 6.0}]
    given, taken = iter(own), iter(ways)
    monkeypatch.setattr(expert_peers, "prepare", lambda *_: SimpleNamespace(source=tmp_path))
    monkeypatch.setattr(expert_peers, "start_mlxr", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(expert_peers, "mlxr", lambda _: next(given))
    monkeypatch.setattr(expert_peers, "llama_bench", lambda *_: next(taken))
    args = argparse.Namespace(models=tmp_path, llama=tmp_path, threads=1, rounds=2)
    result = expert_peers.measure("q8_0", args, sys.stderr)
    assert result["prompt"] == {"mlxr": 50.0, "llama.cpp": 20.0, "ratio": 2.5}
    assert result["decode"] == {"mlxr": 6.0, "llama.cpp": 4.0, "ratio": 1.5}
