"""Importance matrices that are made: sums against plain arithmetic, experts, the command, what they are good for."""

from pathlib import Path

import numpy as np
import pytest

import mlxr
from mlxr.bench.divergence import divergence
from mlxr.bench.text_windows import Window
from mlxr.cli import main
from mlxr.compiler.errors import WeightsError
from mlxr.quantise.block_quantiser import quantise_rows
from mlxr.quantise.collect_importance import collect_importance
from mlxr.quantise.importance import Importance, read_importance, write_importance
from mlxr.quantise.mixtures import MIXTURES, Wishes
from mlxr.quantise.requantise import Quantisation, gguf_source, write_quantised
from mlxr.quantise.source_tensor import SourceTensor
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests.converted_models import make_folder
from mlxr_tests.storyteller import GOLDEN, Q8_0, VALID

F32 = GOLDEN / "tiny-f32.gguf"
EXACT = mlxr.Changes(activation_dtype="f32", cache_dtype="f32", compute="exact")
TOKENS = [int(token) for token in np.random.default_rng(2).integers(3, 640, 40)]


def test_sums_of_squares() -> None:
    """The first layer reads normalised embeddings; q, k and v read the same. Two windows, one of them short."""
    model = mlxr.load(F32, host="reference", changes=EXACT)
    sums = collect_importance(model, [Window(TOKENS[:30], 1), Window(TOKENS[30:], 1)])
    file = open_weights(F32)
    rows = file.read("token_embd.weight")[TOKENS].astype(np.float64)
    eps = model.artifact.spec.model.norm.eps
    normal = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + eps) * file.read("blk.0.attn_norm.weight")
    squares, counts = sums["blk.0.attn_q.weight"]
    assert list(counts) == [40]
    np.testing.assert_allclose(squares, (normal**2).sum(axis=0)[None], rtol=1e-5)
    for name in ("k", "v"):
        np.testing.assert_array_equal(sums[f"blk.0.attn_{name}.weight"][0], squares)
    matrices = {name for name, t in file.tensors.items() if name.startswith("blk.") and len(t.shape) > 1}
    assert sums.keys() == matrices
    assert all(sums[name][0].shape == (1, file.tensors[name].shape[1]) for name in matrices)
    assert model.host.observe is None  # type: ignore[attr-defined]


def test_experts_count_their_own_tokens(tmp_path: Path) -> None:
    model = mlxr.load(make_folder("qwen3_moe", tmp_path / "in"), host="reference", changes=EXACT)
    sums = collect_importance(model, [Window(TOKENS[:20], 1)])
    for name, columns in (("gate", 96), ("up", 96), ("down", 40)):
        squares, counts = sums[f"blk.1.ffn_{name}_exps.weight"]
        assert squares.shape == (5, columns) and sum(counts) == 40 and max(counts) <= 20
        assert all((count > 0) == bool(row.any()) for count, row in zip(counts, squares, strict=True))
    every, _ = sums["blk.1.ffn_gate_inp.weight"]
    chosen = sums["blk.1.ffn_up_exps.weight"][0].sum(axis=0)
    np.testing.assert_allclose(chosen, 2 * every[0], rtol=1e-5)  # each token goes to two experts


@pytest.mark.long
def test_a_model_loses_less_with_one(tmp_path: Path) -> None:
    """On other tokens than it was made of."""
    original = mlxr.load(F32, host="reference", changes=EXACT)
    random = np.random.default_rng(4)
    made_of = [Window([int(token) for token in random.integers(3, 640, 64)], 1) for _ in range(3)]
    write_importance(tmp_path / "i.gguf", collect_importance(original, made_of), "numbers", 3, 64)
    importance, lost = read_importance(tmp_path / "i.gguf"), []
    for given in (None, importance):
        path = tmp_path / "out.gguf"
        write_quantised(gguf_source(F32), path, Quantisation(MIXTURES["q2_k"], Wishes(pure=True), given))
        lost.append(divergence(mlxr.load(path, host="reference", changes=EXACT), original, TOKENS, 40).mean)
    assert lost[1] < 0.9 * lost[0]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "i.gguf"
    text.write_text(VALID.read_text()[:600])
    assert main(["imatrix", str(Q8_0), "--text", str(text), "-o", str(out), "--context", "32", "--tokens", "40"]) == 0
    assert capsys.readouterr().out == f"{out}: 42 tensors, 42 tokens\n"
    made = read_importance(out)
    assert (made.dataset, made.chunks, len(made.columns)) == (str(text), 2, 42)
    for extra, message in (
        (["--host", "cpu"], "only host reference tells what weights are multiplied with"),
        (["--tokens", "0"], "--tokens is 0; expected at least 1"),
    ):
        assert main(["imatrix", str(Q8_0), "--text", str(text), "-o", str(out), *extra]) == 1
        assert message in capsys.readouterr().err
    assert main(["imatrix", str(out), "--text", str(text), "-o", str(out)]) == 1
    assert "the model is read from this file" in capsys.readouterr().err


def test_matrices_of_other_models_and_bad_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "i.gguf"
    write_importance(path, {"blk.0.attn_q.weight": (np.ones((1, 96), np.float32), [4])}, "x", 1, 4)
    how = Quantisation(MIXTURES["q4_k_m"], importance=read_importance(path))
    with pytest.raises(
        WeightsError, match=r"has 96 weights for tensor 'blk\.0\.attn_q\.weight', which has .* another model"
    ):
        write_quantised(gguf_source(F32), tmp_path / "out.gguf", how)
    assert not (tmp_path / "out.gguf").exists()
    write_importance(path, {"other.weight": (np.ones((1, 96), np.float32), [4])}, "x", 1, 4)
    command = ["quantize", str(F32), "-o", str(tmp_path / "out.gguf"), "--format", "q4_0", "--imatrix", str(path)]
    assert main(command) == 1
    assert "has weights for no tensor of this model" in capsys.readouterr().err
    write_importance(path, {"blk.0.attn_q.weight": (np.full((1, 256), np.inf, np.float32), [4])}, "x", 1, 4)
    with pytest.raises(WeightsError, match=r"the weights of tensor 'blk\.0\.attn_q\.weight' are not all finite"):
        read_importance(path)
    write_importance(path, {"a.weight": (np.float32([[4, 8], [1, 1]]), [2, 0])}, "x", 1, 4)
    np.testing.assert_array_equal(read_importance(path).columns["a.weight"], [2, 4, 1, 1])  # an expert without tokens


def test_gaps_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tensors that are written as floats or without weights are not missed, nor are embeddings."""
    path, out = tmp_path / "i.gguf", tmp_path / "out.gguf"
    source = gguf_source(F32)
    there = [name for name, tensor in source.tensors.items() if name.startswith("blk.0") and len(tensor.shape) == 2]
    names = [*there, "blk.9.attn_q.weight"]
    sizes = {name: source.tensors[name].shape[-1] if name in source.tensors else 8 for name in names}
    write_importance(path, {name: (np.ones((1, size), np.float32), [4]) for name, size in sizes.items()}, "x", 1, 4)
    command = ["quantize", str(F32), "-o", str(out), "--imatrix", str(path), "--format"]
    assert main([*command, "q4_0", "--tensor-type", "blk.1.attn_v=q8_0", "--tensor-type", "blk.1.attn_k=f16"]) == 0
    assert capsys.readouterr().err == (
        f"note: {path}: has no weights for 5 of 12 tensors (blk.1.attn_output.weight, blk.1.attn_q.weight, "
        "blk.1.ffn_down.weight, ...), of which errors in all columns count the same; it has weights for 1 tensor that "
        "the model lacks (blk.9.attn_q.weight)\n"
    )
    assert main([*command, "q8_0"]) == 0
    assert "has no weights" not in capsys.readouterr().err
    assert main([*command, "q2_k_s"]) == 1
    assert f"q2_k needs an importance matrix, and {path} has no weights for this tensor" in capsys.readouterr().err


def test_each_matrix_of_a_stack_has_its_own_weights() -> None:
    numbers = np.random.default_rng(1).normal(size=(6, 64)).astype(np.float32)
    weights = np.random.default_rng(2).uniform(0.01, 9, (2, 64)).astype(np.float32)
    stack = SourceTensor("x_exps.weight", (2, 3, 64), "f32", lambda first, last: numbers[first:last])
    found = np.concatenate(list(stack.written("q4_0", weights).pieces()))
    expected = [quantise_rows(numbers[3 * i : 3 * i + 3], "q4_0", weights[i]) for i in range(2)]
    np.testing.assert_array_equal(found, np.concatenate(expected))
    columns = {"token_embd.weight": np.ones(3, np.float32)}  # as llama.cpp, which has none for embeddings
    assert Importance(Path("i.gguf"), columns).of("token_embd.weight", (9, 64)) is None
