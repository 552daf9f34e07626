"""What `fast` costs: perplexity of storyteller's held-out text, against `exact` on the same weights."""

from pathlib import Path

import pytest

import mlxr
from mlxr.bench.perplexity import perplexity
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.loading.imported_model import import_model
from mlxr.runtime.hosts.cpu.processor import processor_identity
from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer
from mlxr_tests.storyteller import BF16, Q4_K_M, Q8_0, TOKENIZER, VALID

WINDOW = 512
WINDOWS = 16


@pytest.fixture(scope="module")
def ids() -> list[int]:
    """Windows from all over the text."""
    every = load_tokenizer(TOKENIZER).encode(VALID.read_text())
    step = len(every) // WINDOWS // WINDOW * WINDOW
    return [token for start in range(0, step * WINDOWS, step) for token in every[start : start + WINDOW]]


def loaded(path: Path, compute: str) -> mlxr.Model:
    spec, weights = import_model(path, ImportOptions(compute=compute))  # type: ignore[arg-type]
    artifact = compile_spec(spec, targets=("cpu",)).artifact
    return mlxr.load(artifact, weights, host="cpu", tokenizer=TOKENIZER)


@pytest.mark.long
@pytest.mark.parametrize("path", [Q8_0, Q4_K_M, BF16.parent], ids=["q8_0", "q4_k_m", "bf16"])
def test_fast_is_within_three_per_mille_of_exact(path: Path, ids: list[int]) -> None:
    exact, fast = (perplexity(loaded(path, compute), ids, WINDOW).value for compute in ("exact", "fast"))
    assert 10 < exact < 60, f"perplexity {exact}: the model does not read its own kind of text"
    # Activations are rounded to 8 bits for quantised weights, and to bf16 for bf16 where the CPU multiplies these.
    if path != BF16.parent or "avx512_bf16" in processor_identity():
        assert fast != exact, "fast computes what exact does: it was not compiled for it"
    assert abs(fast / exact - 1) < 0.003, f"{path.name}: exact {exact:.4f}, fast {fast:.4f}"
