"""Published models, quantised: the files of llama-quantize, and divergences as llama-perplexity tells them."""

import hashlib
from pathlib import Path

import pytest

import mlxr
from mlxr.bench.divergence import divergence_on
from mlxr.bench.text_windows import Window
from mlxr.quantise.mixtures import MIXTURES
from mlxr.quantise.requantise import Quantisation, gguf_source, write_quantised
from mlxr_tests.real_files import GEMMA3, SMOLLM2, RealFiles, real_file
from mlxr_tests.storyteller import VALID

EXACT = mlxr.Changes(compute="exact")
KNOWN = [
    (SMOLLM2, "q4_k_m", "dc0f3a02e821146247a0af6895adf9872124f368682cb110cb9ed09ff2a9f9f1"),
    (GEMMA3, "q3_k_m", "606afb013edee89c314a12071162e069c44d46eb626ed1ccc72af450b7e177eb"),
]
"""Hashes of what `llama-quantize --allow-requantize` writes."""


def quantised(file: RealFiles, mixture: str, path: Path) -> Path:
    write_quantised(gguf_source(real_file(file, ".gguf")), path, Quantisation(MIXTURES[mixture], requantise=True))
    return path


@pytest.mark.parametrize(("file", "mixture", "known"), KNOWN, ids=lambda value: str(getattr(value, "name", value))[:20])
def test_files(file: RealFiles, mixture: str, known: str, tmp_path: Path) -> None:
    content = quantised(file, mixture, tmp_path / "out.gguf").read_bytes()
    assert hashlib.sha256(content).hexdigest() == known


def test_divergence(tmp_path: Path) -> None:
    """llama-perplexity --kl-divergence, of the same file against the model in f32, over the second halves of windows.

    It rounds activations to 8 bits and the original's probabilities to 16: 0.04970 +- 0.00147 nats (90 %: 0.0994, 99 %:
    0.2368), the same first token 87.19 +- 0.70 %, 1.0724 +- 0.0078 times the perplexity 20.7858.
    """
    model = mlxr.load(quantised(SMOLLM2, "q4_k_m", tmp_path / "out.gguf"), host="cpu")
    original = mlxr.load(real_file(SMOLLM2, ".gguf"), host="cpu", changes=EXACT)
    ids = model.require_tokenizer().encode(VALID.read_bytes()[:20_000].decode())
    windows = [Window(ids[start : start + 512], 257) for start in range(0, len(ids) - 511, 512)]
    found = divergence_on(model, original, windows)
    assert found.perplexity.tokens == 9 * 255
    assert found.mean == pytest.approx(0.04970, rel=0.06)
    assert found.quantiles["p90"] == pytest.approx(0.0994, rel=0.06)
    assert found.quantiles["p99"] == pytest.approx(0.2368, rel=0.06)
    assert found.same_first == pytest.approx(0.8719, abs=0.007)
    assert found.ratio == pytest.approx(1.0724, abs=0.0078)
    assert found.original.value == pytest.approx(20.7858, rel=1e-3)
