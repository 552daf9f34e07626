"""Quantised GGUF files have the bytes that llama-quantize writes (goldens, and `record_llama_quantize.py`)."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from mlxr.quantise import block_quantiser
from mlxr.quantise.importance import read_importance
from mlxr.quantise.mixtures import MIXTURES, Wishes
from mlxr.quantise.requantise import Quantisation, chosen_formats, gguf_source, write_quantised
from mlxr.runtime.weights.gguf_parts import read_gguf_model
from mlxr_tests.few import few
from mlxr_tests.quantised_files import (
    IMPORTANT,
    RECORDED,
    SHAPES,
    cut,
    formats_digest,
    rows_digest,
    write_importances,
    write_shape,
)
from mlxr_tests.storyteller import GOLDEN

F32 = GOLDEN / "tiny-f32.gguf"
GOLDENS = sorted(
    path.stem.removeprefix("tiny-")
    for path in GOLDEN.glob("tiny-*.gguf")
    if path.stem != "tiny-f32" and path.stem[5:].lower() in MIXTURES
)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


def how(name: str) -> Quantisation:
    """How the golden file of that name was made."""
    return Quantisation(MIXTURES[name.lower()], Wishes(pure=name not in ("Q2_K", "Q4_K_M", "Q5_K_M")))


def test_all_goldens_are_compared() -> None:
    assert len(GOLDENS) >= 14, GOLDENS


@pytest.mark.parametrize("name", few(GOLDENS, ["Q4_K_M"]))
def test_whole_tensors(name: str, tmp_path: Path) -> None:
    """The golden files are those of llama-quantize, most of them with --pure, of the f32 one."""
    out, golden = tmp_path / "out.gguf", GOLDEN / f"tiny-{name}.gguf"
    size = write_quantised(gguf_source(F32), out, how(name))
    ours, theirs = read_gguf_model(out).tensors, read_gguf_model(golden).tensors
    assert [(each.name, each.shape, each.type) for each in ours.values()] == [
        (each.name, each.shape, each.type) for each in theirs.values()
    ]
    begins = [min(each.offset for each in tensors.values()) for tensors in (ours, theirs)]
    assert out.read_bytes()[begins[0] :] == golden.read_bytes()[begins[1] :]
    assert size == out.stat().st_size


@pytest.mark.parametrize("name", GOLDENS)
def test_rows(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    write_quantised(cut(gguf_source(F32)), out, how(name))
    assert rows_digest(out) == rows_digest(GOLDEN / f"tiny-{name}.gguf")


@pytest.mark.long
def test_rows_by_optimised_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As users get it: the compiler may use all that this CPU has, and must not fuse products with additions."""
    monkeypatch.delenv("MLXR_CPU_CFLAGS", raising=False)
    block_quantiser._library.cache_clear()
    try:
        for name in GOLDENS:
            out = tmp_path / "out.gguf"
            write_quantised(gguf_source(F32), out, how(name))
            assert rows_digest(out) == rows_digest(GOLDEN / f"tiny-{name}.gguf"), name
    finally:
        block_quantiser._library.cache_clear()


@pytest.mark.parametrize("form", [".gguf", ".dat"])
def test_importance(form: str, recorded: dict[str, Any], tmp_path: Path) -> None:
    """All mixtures, with matrices of both forms, in one test: they share the reading."""
    matrix = next(path for path in write_importances(tmp_path) if path.suffix == form)
    importance, source, out = read_importance(matrix), cut(gguf_source(F32)), tmp_path / "out.gguf"
    assert (importance.dataset, importance.chunks) == ("a text", 1)
    for name in IMPORTANT if form == ".gguf" else ("q4_k_s", "q5_0"):
        write_quantised(source, out, Quantisation(MIXTURES[name], importance=importance))
        assert rows_digest(out) == recorded["important"][form][name], name
    assert gguf_source(out).metadata["quantize.imatrix.chunks_count"] == 1
    assert gguf_source(out).metadata["quantize.imatrix.dataset"] == "a text"


@pytest.mark.parametrize("shape", few(SHAPES, ["llama", "llama, 8 experts", "qwen2, rows of 288"]))
def test_formats_of_tensors(shape: str, recorded: dict[str, Any], tmp_path: Path) -> None:
    """Rules that depend on layers, heads, experts, the architecture, and on the length of rows."""
    source, out = gguf_source(write_shape(shape, tmp_path / "shape.gguf")), tmp_path / "out.gguf"
    for name, digest in recorded["shapes"][shape].items():
        chosen = chosen_formats(source, Quantisation(MIXTURES[name]))
        if name == "q4_k_m":
            write_quantised(source, out, Quantisation(MIXTURES[name]))
            assert formats_digest(out) == digest
        listed = "\n".join(f"{tensor} {format.upper()}" for tensor, format in chosen.items())
        assert digest_of(listed) == digest, f"{name}\n{listed}"


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
