"""Every family as a GGUF file with the metadata of llama.cpp's converter: our logits are llama.cpp's.

llama.cpp's were recorded (some by its server, as log-probabilities: what all logits of a token share is no difference)
in f32 with an f32 cache (llama_cpp_logits.npz; `--update-golden` records them again, where
llama-cpp-python is installed). It looks gelu up in a table of f16, hence the wider tolerance of families that use it.
"""

from pathlib import Path

import numpy as np
import pytest

from mlxr.compiler.errors import ContextError
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.loading.imported_model import import_model
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests.family_gguf import CASES, write_gguf
from mlxr_tests.family_models import VOCAB
from mlxr_tests.family_oracle import EXACT, Floats, logits_of, prompts, relative_error
from mlxr_tests.few import few

RECORDED = Path(__file__).with_name("llama_cpp_logits.npz")
TOLERANCE = 1e-5
GELU_TOLERANCE = 1e-3


@pytest.fixture(scope="session", autouse=True)
def record(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    if not request.config.getoption("--update-golden"):
        return
    from mlxr_tests.llama_cpp import llama_cpp_logits

    logits = {}
    for number, case in enumerate(CASES):
        path = write_gguf(case, tmp_path_factory.mktemp(f"case{number}"))
        for sequence, tokens in enumerate(prompts(VOCAB)):
            logits[f"{case} {sequence}"] = llama_cpp_logits(path, tokens)
    np.savez_compressed(RECORDED, **logits)


ON_HOSTS = [(case, host) for case in CASES for host in ("reference", "cpu")]


OTHERS = (
    *("gemma3_text, no window", "glm", "mistral3, no temperature", "seed_oss", "ernie4_5", "granitemoe", "nemotron"),
    *("exaone", "baichuan", "baichuan, 40 layers", "gemma3_text, all layers slide", "granite, no positions"),
    "mimo_v2_flash, long values",
    *("glm4, a guessing layer", "nemotron_h, experts", "granitemoehybrid, experts", "gemma4_text, experts"),
)
"""Cases of whose parts others have each: long ones."""
SHORT = [(case, host) for case, host in ON_HOSTS if (case not in OTHERS and host == "reference") or case == "llama"]


@pytest.mark.parametrize(("case", "host"), few(ON_HOSTS, SHORT))
def test_logits_are_those_of_llama_cpp(case: str, host: str, tmp_path: Path) -> None:
    check(case, write_gguf(case, tmp_path), host)


@pytest.mark.parametrize("case", ["llama", "qwen2", "cohere", "kimi_linear"])
def test_joined_projections(case: str, tmp_path: Path) -> None:
    """Rows of rotary pairs that are taken apart, biases, and rows in the file's own order."""
    check(case, write_gguf(case, tmp_path, joined=True), "reference")


def test_of_a_context_that_an_indexer_shortens(tmp_path: Path) -> None:
    path = write_gguf("glm_moe_dsa", tmp_path)
    with pytest.raises(
        ContextError, match=r"context is 64 tokens, since of more tokens an indexer chooses some, which "
    ):
        import_model(path, ImportOptions(context=65))
    assert len(open_weights(path).beside["indexers"]) == 15


def check(case: str, path: Path, host: str) -> None:
    with np.load(RECORDED) as recorded:
        want = [recorded[f"{case} {sequence}"] for sequence in range(2)]
    mlp = import_model(path, EXACT)[0].model.mlp
    tolerance = GELU_TOLERANCE if mlp is not None and mlp.activation.startswith("gelu") else TOLERANCE
    got = logits_of(path, prompts(VOCAB), host)
    assert relative_error([_centred(rows) for rows in got], [_centred(rows) for rows in want]) < tolerance


def _centred(rows: Floats) -> Floats:
    return rows - rows.mean(axis=-1, keepdims=True)
