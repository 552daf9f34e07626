"""`mlxr perplexity --against`: figures against plain arithmetic, the command, faults."""

import json

import numpy as np
import numpy.typing as npt
import pytest

import mlxr
from mlxr.bench.divergence import divergence
from mlxr.cli import main
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.model import Model
from mlxr_tests.storyteller import GOLDEN, Q8_0, VALID

IDS = [int(token) for token in np.random.default_rng(5).integers(3, 640, 75)]


@pytest.fixture(scope="module")
def models() -> tuple[Model, Model]:
    """A tiny model of 640 tokens in 4 bits, and in f32."""
    quantised, original = (
        mlxr.load(GOLDEN / f"tiny-{name}.gguf", host="reference", changes=mlxr.Changes(activation_dtype="f32"))
        for name in ("Q4_0", "f32")
    )
    return quantised, original


def shares(model: Model, tokens: list[int]) -> npt.NDArray[np.float64]:
    """Probabilities after each token but the last, by plain arithmetic."""
    numbers = np.exp(model.logits(tokens).astype(np.float64))[:-1]
    found: npt.NDArray[np.float64] = numbers / numbers.sum(axis=1, keepdims=True)
    return found


def test_figures(models: tuple[Model, Model]) -> None:
    """Two windows, one of 40 tokens and one of 35: more rows than are compared at a time, and fewer."""
    pairs = [[shares(model, part) for model in models] for part in (IDS[:40], IDS[40:])]
    ours, theirs = (np.concatenate(rows) for rows in zip(*pairs, strict=True))
    every = np.sort((theirs * np.log(theirs / ours)).sum(axis=1))
    following = IDS[1:40] + IDS[41:]
    losses = [-np.log(rows[np.arange(73), following]) for rows in (ours, theirs)]
    found = divergence(*models, IDS, 40)
    assert found.mean == pytest.approx(every.mean(), rel=1e-5) and found.mean > 1e-3
    assert found.quantiles["max"] == pytest.approx(every[-1], rel=1e-5)
    assert found.quantiles["median"] == pytest.approx(every[36], rel=1e-5)
    assert every[64] <= found.quantiles["p90"] <= every[65]
    assert found.same_first == np.mean(ours.argmax(axis=1) == theirs.argmax(axis=1)) < 1
    assert found.ratio == pytest.approx(np.exp((losses[0] - losses[1]).mean()), rel=1e-6)
    assert found.perplexity.value == pytest.approx(np.exp(losses[0].mean()), rel=1e-6)
    assert found.original.value == pytest.approx(np.exp(losses[1].mean()), rel=1e-6)
    assert (found.perplexity.tokens, found.perplexity.windows) == (73, 2)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["perplexity", str(Q8_0), "--text", str(VALID), "--context", "32", "--tokens", "30"]
    assert main([*arguments, "--host", "reference", "--against", "storyteller"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("against storyteller (perplexity ") and "ratio 1.0" in lines[1]
    assert "90 % 0.0" in lines[2] and lines[3].startswith("same first choice 100.00%")


@pytest.mark.long
def test_json_has_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["perplexity", str(Q8_0), "--text", str(VALID), "--context", "64", "--tokens", "60", "--json"]
    assert main([*arguments, "--host", "reference", "--against", "storyteller"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["against"] == "storyteller" and shown["divergence"]["quantiles"]["p999"] == 0
    assert shown["divergence"]["original"]["value"] == shown["perplexity"]


def test_models_of_other_vocabularies(models: tuple[Model, Model]) -> None:
    other = mlxr.load(Q8_0, host="reference")
    with pytest.raises(RequestError, match="has 4096 tokens and tiny-f32 640: only models with the same vocabulary"):
        divergence(other, models[1], IDS, 40)
