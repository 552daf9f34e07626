"""`mlxr perplexity`: the number against plain arithmetic, windows and strides, options, faults."""

import json
from pathlib import Path

import numpy as np
import pytest

import mlxr
from mlxr.bench.perplexity import perplexity
from mlxr.cli import main
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.model import Model
from mlxr_tests.storyteller import GOLDEN, Q8_0, VALID, storyteller_spec


@pytest.fixture(scope="module")
def model() -> Model:
    """Storyteller with a context of 64 and steps of 16 tokens."""
    spec = storyteller_spec(model={"context": 64}, cache={"max_sequences": 3}, prefill_chunk=16, compute="exact")
    return mlxr.load(compile_spec(spec).artifact, Q8_0, host="cpu")


def losses(model: Model, tokens: list[int]) -> list[float]:
    """-log of the probability of each token but the first, by plain arithmetic."""
    logits = model.logits(tokens).astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return [-float(np.log(shares[i, token])) for i, token in enumerate(tokens[1:])]


@pytest.fixture(scope="module")
def ids(model: Model) -> list[int]:
    assert model.tokenizer is not None
    return model.tokenizer.encode(VALID.read_text()[:600], add_special=False)[:100]


@pytest.mark.long
def test_windows_side_by_side(model: Model, ids: list[int]) -> None:
    """40 tokens each, the last one of 20; the first token of each has nothing before it."""
    expected = losses(model, ids[:40]) + losses(model, ids[40:80]) + losses(model, ids[80:])
    shown: list[tuple[int, int, float]] = []
    found = perplexity(model, ids, 40, progress=lambda *now: shown.append(now))
    assert (found.tokens, found.windows) == (97, 3)
    assert found.value == pytest.approx(np.exp(np.mean(expected)), rel=1e-6)
    assert found.standard_error == pytest.approx(found.value * np.std(expected) / 97**0.5, rel=1e-6)
    assert [now[:2] for now in shown] == [(1, 3), (2, 3), (3, 3)]
    assert shown[-1][2] == pytest.approx(found.value)


@pytest.mark.long
def test_a_bos_before_each_window(model: Model, ids: list[int]) -> None:
    expected = [loss for start in range(0, 100, 39) for loss in losses(model, [1, *ids[start : start + 39]])]
    found = perplexity(model, ids, 40, begin=1)
    assert (found.tokens, found.windows) == (100, 3)
    assert found.value == pytest.approx(np.exp(np.mean(expected)), rel=1e-6)


def test_strides(model: Model, ids: list[int]) -> None:
    """Each window predicts what the last one has not: its last 15 tokens."""
    expected = losses(model, ids[:20]) + losses(model, ids[15:35])[-15:] + losses(model, ids[30:50])[-15:]
    found = perplexity(model, ids[:50], 20, 15)
    assert (found.tokens, found.windows) == (49, 3)
    assert found.value == pytest.approx(np.exp(np.mean(expected)), rel=1e-6)
    assert found.value != perplexity(model, ids[:50], 20).value


@pytest.mark.parametrize(
    ("tokens", "window", "stride", "begin", "message"),
    [
        (100, 65, None, None, "a window of 65 tokens exceeds the model's context, 64"),
        (100, 40, 41, None, "the stride is 41 tokens; expected 1 to 40"),
        (100, 40, 40, 1, "the stride is 40 tokens; expected 1 to 39"),
        (1, 40, None, None, "the text has 1 token; expected at least 2"),
        (0, 40, None, 1, "the text has 0 tokens; expected at least 1"),
    ],
)
def test_bad_requests(
    model: Model, ids: list[int], tokens: int, window: int, stride: int | None, begin: int | None, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        perplexity(model, ids[:tokens], window, stride, begin)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["perplexity", str(Q8_0), "--text", str(VALID), "--context", "64", "--threads", "1"]
    assert main([*arguments, "--tokens", "300", "--host", "cpu", "--kv", "q8", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["tokens"], shown["windows"], shown["context"]) == (300, 5, 64)
    assert (shown["host"], shown["cache"], shown["compute"]) == ("cpu", "q8", "fast")
    assert 10 < shown["perplexity"] < 80 and shown["standard_error"] > 0 and "error" not in shown


@pytest.mark.long
def test_the_command_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["perplexity", str(Q8_0), "--text", str(VALID), "--context", "64", "--tokens", "100"]
    assert main([*arguments, "--host", "reference", "--compute", "exact"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("perplexity ")
    assert "exact, host reference" in line


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--text", "missing.txt"], "--text missing.txt: cannot be read"),
        (["--text", str(GOLDEN / "tiny-Q8_0.gguf")], "is not UTF-8"),
        (["--text", str(VALID), "--context", "0"], "--context is 0; expected at least 1"),
        (["--text", str(VALID), "--stride", "0"], "--stride is 0; expected at least 1"),
        (["--text", str(VALID), "--context", "5000"], "5000"),
    ],
)
def test_faulty_input_gives_a_message_and_1(capsys: pytest.CaptureFixture[str], extra: list[str], message: str) -> None:
    assert main(["perplexity", "storyteller", "--host", "reference", *extra]) == 1
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_an_empty_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    assert main(["perplexity", "storyteller", "--host", "reference", "--text", str(tmp_path / "empty.txt")]) == 1
    assert "the text has 0 tokens" in capsys.readouterr().err
