"""A head of other files (EAGLE-3) as the draft: answers are those without it; what is refused, and how."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxr
from mlxr.compiler.artifact import HIDDEN
from mlxr.compiler.errors import MlxrError, RequestError, SpecError, WeightsError
from mlxr.loading.options import LoadOptions
from mlxr.loading.planned_memory import planned_memory
from mlxr.runtime.engine.model import Model
from mlxr_tests import eagle_models as cases
from mlxr_tests import mtp_models
from mlxr_tests.eager_head import Eager, head_of, rights, run
from mlxr_tests.few import few
from mlxr_tests.storyteller import TINY

IDS = "eagle_aux_hidden_state_layer_ids"
GREEDY, SAMPLED = mlxr.Sampling(), mlxr.Sampling(temperature=1.2, top_k=40, seed=7)
CHANGES = mlxr.Changes(
    context=128, sequences=3, compute="exact", activation_dtype="f32", cache_dtype="f32", deterministic=True
)


def ids(count: int, start: int = 300) -> list[int]:
    return [1, *range(start, start + count - 1)]


PROMPTS = [ids(9), ids(40, 400), ids(23, 500)]


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cases.save_head(cases.OF_TINY, tmp_path_factory.mktemp("head"))


@pytest.fixture(scope="module", params=few(["cpu", "reference", "sim"], ["cpu"]))
def model(draft: Path, request: pytest.FixtureRequest) -> Iterator[Model]:
    with mlxr.load(TINY, host=request.param, draft=draft, changes=CHANGES) as loaded:
        yield loaded
        loaded.pager.check_integrity()
        assert loaded.pager.num_sequences == 0


@pytest.mark.parametrize("sampling", few([GREEDY, SAMPLED], [SAMPLED]), ids=["greedy", "sampled"])
def test_the_answers_are_those_without(model: Model, sampling: mlxr.Sampling) -> None:
    with mlxr.load(TINY, host=model.host.name, changes=CHANGES) as alone:
        plain = run(alone, None, PROMPTS, sampling)
        stores = [{store.name for store in loaded.arena.geometry.stores} for loaded in (alone, model)]
        assert stores[1] - stores[0] == {HIDDEN}
    assert run(model, Eager(head_of(model)), PROMPTS, sampling) == plain
    for wrong in (0, 1, 3):
        before = model.core.stats()
        assert run(model, Eager(head_of(model), rights(PROMPTS, plain, wrong)), PROMPTS, sampling) == plain
        after = model.core.stats()
        assert after.draft_tokens > before.draft_tokens
        assert (after.accepted_tokens > before.accepted_tokens) == (wrong > 0)


def test_it_guesses_the_same_however_it_has_read(model: Model) -> None:
    """After any number of right guesses, and of a prefix that others have read, its guesses are those of a new text."""
    plain = run(model, None, PROMPTS, GREEDY)
    first = Eager(head_of(model), rights(PROMPTS, plain, 0))
    run(model, first, PROMPTS, GREEDY)
    known = set(cases.OF_TINY.ids().tolist())
    assert known.issuperset(token for guess in first.guesses.values() for token in guess)
    for wrong in (1, 3):
        eager = Eager(head_of(model), rights(PROMPTS, plain, wrong))
        run(model, eager, PROMPTS, GREEDY)
        assert len(eager.guesses) > 10
        for text, guess in eager.guesses.items():
            assert guess == first.guesses[text][: len(guess)], len(text)


def test_it_is_the_draft(model: Model) -> None:
    """It guesses as long as that pays, and no other way is tried beside it; its memory is planned with the model's."""
    assert model.core.speculator is not None
    with pytest.raises(RequestError, match="speculates already"):
        model.speculate()
    plans = [planned_memory(TINY, LoadOptions(draft=path, changes=CHANGES)).full for path in (None, model_draft(model))]
    assert plans[1] > plans[0]


def model_draft(model: Model) -> Path:
    file = next(tensor.file for name, tensor in model._file.tensors.items() if name.startswith("eagle."))
    return file.parent


@pytest.mark.long
@pytest.mark.parametrize("host", ["cpu", "reference", "sim"])
def test_a_model_with_states(tmp_path: Path, host: str) -> None:
    """Gated delta nets beside attention, and a head with rows of another width: all bits are those without it."""
    head = replace(cases.HEADS["speculators"], config=cases.HEADS["speculators"].config | {IDS: [0, 1, 2]})
    target, draft = mtp_models.save("qwen3_next", tmp_path), cases.save_head(head, tmp_path / "head")
    text, changes = mtp_models.prompt(), replace(CHANGES, context=64)
    prompts = [text, text[:5], text * 2]
    with mlxr.load(target, host=host, mtp="off", changes=changes) as alone:
        plain, logits = run(alone, None, prompts, SAMPLED), alone.logits(text)
    with mlxr.load(target, host=host, draft=draft, changes=changes) as model:
        assert np.array_equal(model.logits(text), logits)
        for wrong in (0, 1, 3):
            assert run(model, Eager(head_of(model), rights(prompts, plain, wrong)), prompts, SAMPLED) == plain


def changed(folder: Path, **config: Any) -> Path:
    return cases.save_head(cases.OF_TINY, folder, cases.OF_TINY.config | config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"speculators_model_type": "eagle"}, "of heads for other models, eagle3 is run"),
        ({"num_hidden_layers": 2}, "a head with 2 layers"),
        ({IDS: [0, 1]}, r"is \[0, 1\]; expected the numbers of 3 layers"),
        ({IDS: None}, r"before layers 2, 1, -1, and there are 2"),
        ({IDS: [0, 1, 3]}, r"before layers 0, 1, 3, and there are 2"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is false"),
        ({"quantization_config": {"bits": 4}}, "quantised heads are read as GGUF files alone"),
        ({"num_key_value_heads": 3}, r"(?s)no spec can be made of what it says.*num_heads 4 is not a multiple"),
        ({"norm_output": "yes"}, 'norm_output is "yes"; expected true or false'),
    ],
)
def test_heads_of_other_kinds_are_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        mlxr.load(TINY, host="reference", draft=changed(tmp_path, **config))


def test_heads_for_other_models_are_refused(tmp_path: Path, draft: Path) -> None:
    other = cases.save_head(cases.HEADS["eagle"], tmp_path / "a")
    with pytest.raises(SpecError, match=r"reads rows of 96 numbers .* and the model's have 256: take the one that was"):
        mlxr.load(TINY, host="reference", draft=other)
    smaller = cases.save_head(replace(cases.OF_TINY, vocab=600), tmp_path / "b")
    with pytest.raises(SpecError, match=r"for a vocabulary of 600 tokens, and the model's has 640"):
        mlxr.load(TINY, host="reference", draft=smaller)
    with pytest.raises(SpecError, match="not a model but a head, such as EAGLE's"):
        mlxr.load(draft, host="reference")
    with pytest.raises(RequestError, match="loaded for embeddings guesses nothing"):
        mlxr.load(TINY, host="reference", draft=draft, changes=mlxr.Changes(output="hidden"))


def test_tensors_that_are_missing_or_unknown(tmp_path: Path) -> None:
    for more, less, message in (
        (
            {"midlayer.self_attn.q_norm.weight": mx.ones(32)},
            (),
            "nobody knows what they do in a head: layers.0.self_attn",
        ),
        ({}, ("fc.weight",), r"no fc.weight or no q_proj"),
        ({}, ("midlayer.mlp.up_proj.weight",), r"lacks 1 of .*up_proj"),
        ({}, ("d2t",), "has no tensor d2t"),
        ({"d2t": mx.full(320, 640, dtype=mx.int64)}, (), "names token 959, and the model has 640"),
    ):
        path = cases.save_head(cases.OF_TINY, tmp_path) / "model.safetensors"
        tensors = {name: array for name, array in mx.load(str(path)).items() if name not in less}
        mx.save_safetensors(str(path), tensors | more)
        with pytest.raises(MlxrError, match=message):
            mlxr.load(TINY, host="reference", draft=tmp_path)
    path.unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"\.bin file is a pickle"):
        mlxr.load(TINY, host="reference", draft=tmp_path)


def test_a_command(draft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mlxr.cli import main

    assert main(["run", str(TINY), "Once", "--draft", str(draft), "--max-tokens", "4", "--json", "--host", "cpu"]) == 0
    assert "draft_tokens" in json.loads(capsys.readouterr().out)
