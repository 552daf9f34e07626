"""A model's own head: answers are those without it; it guesses the same however it has read."""

import gc
import json
import logging
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

import mlxr
from mlxr.compiler.artifact import HIDDEN
from mlxr.compiler.errors import MlxrError, RequestError, WeightsError
from mlxr.loading import load
from mlxr.loading.imported_model import import_model
from mlxr.runtime.engine.core import EngineCore
from mlxr.runtime.engine.model import Model
from mlxr.runtime.engine.request import Request
from mlxr.runtime.engine.step import Step
from mlxr_tests import mtp_models
from mlxr_tests.eager_head import Eager, head_of, rights, run
from mlxr_tests.family_oracle import EXACT
from mlxr_tests.few import few
from mlxr_tests.head_files import save_tiny

GREEDY, SAMPLED = mlxr.Sampling(), mlxr.Sampling(temperature=1.2, top_k=40, seed=7)
CHANGES = mlxr.Changes(
    context=128, sequences=3, compute="exact", activation_dtype="f32", cache_dtype="f32", deterministic=True
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module", params=few(["cpu", "reference", "sim"], ["cpu"]))
def model(folder: Path, request: pytest.FixtureRequest) -> Iterator[Model]:
    with mlxr.load(folder, host=request.param, mtp="on", changes=CHANGES) as loaded:
        yield loaded
        loaded.pager.check_integrity()
        assert loaded.pager.num_sequences == 0


def ids(count: int, start: int = 300) -> list[int]:
    return [1, *range(start, start + count - 1)]


PROMPTS = [ids(9), ids(40, 400), ids(23, 500)]


@pytest.mark.parametrize("sampling", few([GREEDY, SAMPLED], [SAMPLED]), ids=["greedy", "sampled"])
def test_the_answers_are_those_without(model: Model, sampling: mlxr.Sampling) -> None:
    plain = run(model, None, PROMPTS, sampling)
    assert run(model, Eager(head_of(model)), PROMPTS, sampling) == plain
    for wrong in (0, 1, 2, 3):
        eager = Eager(head_of(model), rights(PROMPTS, plain, wrong))
        before = model.core.stats()
        assert run(model, eager, PROMPTS, sampling) == plain
        after = model.core.stats()
        assert after.draft_tokens > before.draft_tokens
        assert (after.accepted_tokens > before.accepted_tokens) == (wrong > 0)


def test_it_guesses_the_same_however_it_has_read(model: Model) -> None:
    """After any number of right guesses, and of a prefix that others have read, its guesses are those of a new text."""
    plain = run(model, None, PROMPTS, GREEDY)
    first = Eager(head_of(model), rights(PROMPTS, plain, 0))
    run(model, first, PROMPTS, GREEDY)
    for wrong in (1, 2, 3):
        eager = Eager(head_of(model), rights(PROMPTS, plain, wrong))
        run(model, eager, PROMPTS, GREEDY)
        assert len(eager.guesses) > 10
        for text, guess in eager.guesses.items():
            assert guess == first.guesses[text][: len(guess)], len(text)


@pytest.mark.long
def test_many_at_once_and_prefixes(model: Model) -> None:
    shared = [ids(33), [*ids(33), 7], [*ids(32), 9, 10], ids(40), ids(48)]
    plain = [run(model, None, [prompt], SAMPLED)[0] for prompt in shared]
    assert run(model, Eager(head_of(model)), shared, SAMPLED) == plain
    again = run(model, Eager(head_of(model), rights(shared, plain, 2)), shared, SAMPLED)
    assert again == plain


@pytest.mark.parametrize("mode", few(["paged", "contiguous"], ["paged"]))
def test_blocks_that_others_had_meanwhile(folder: Path, mode: str) -> None:
    """The head reads a block again when the text, computed without it, comes back into a block that others had."""
    spec, weights = import_model(folder, replace(EXACT, context=48, max_sequences=1, mtp=True))
    cache = spec.cache.model_copy(update={"mode": mode, "block_size": 16})
    spec = spec.model_copy(update={"cache": cache})
    with mlxr.load(spec, weights, host="reference", mtp="on") as model:
        text, others = ids(20), [[*range(start, start + 5)] for start in range(400, 435, 5)]
        first = Eager(head_of(model))
        run(model, first, [text], GREEDY, 4)
        for count in range(len(others)):
            for other in others[:count]:
                run(model, Eager(head_of(model)), [other], GREEDY, 4)
            run(model, None, [text], GREEDY, 4)
            again = Eager(head_of(model))
            run(model, again, [text], GREEDY, 4)
            assert again.guesses == first.guesses


def test_layers_with_windows(tmp_path: Path) -> None:
    """A head may read what has left the windows of other layers, and no block that another text got since."""
    config = json.loads((save_tiny(tmp_path) / "config.json").read_text())
    config |= {"model_type": "mistral", "sliding_window": 16, "max_position_embeddings": 1024}
    (tmp_path / "config.json").write_text(json.dumps(config))
    changes = replace(CHANGES, context=1024, sequences=2)
    with mlxr.load(tmp_path, host="cpu", mtp="on", changes=changes) as model:
        assert [group.window for group in model.arena.geometry.groups] == [None, 16]
        short, long = ids(15), [1, *(11 * i % 600 for i in range(390))]
        alone, both = Eager(head_of(model)), Eager(head_of(model))
        run(model, alone, [short], GREEDY, 12)
        run(model, None, [ids(100, 400)], GREEDY, 1)
        run(model, both, [short, long], GREEDY, 12)
        common = alone.guesses.keys() & both.guesses.keys()
        assert len(common) > 5
        assert all(x == y for t in common for x, y in zip(alone.guesses[t], both.guesses[t], strict=False))


@pytest.mark.long
def test_preemption(model: Model, folder: Path) -> None:
    """Three answers of 90 tokens need more blocks than there are."""
    prompts = [ids(60), ids(61, 400), ids(62, 500)]
    plain = [run(model, None, [prompt], SAMPLED)[0] for prompt in prompts]
    memory = 14 * model.arena.geometry.block_bytes
    with mlxr.load(folder, host="cpu", mtp="on", changes=replace(CHANGES, cache_memory=memory)) as small:
        assert run(small, Eager(head_of(small), rights(prompts, plain, 2)), prompts, SAMPLED) == plain
        assert small.core.stats().preemptions > 0


def test_a_model_without_a_head(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RequestError, match="storyteller has no head of its own"):
        mlxr.load("storyteller", host="reference", mtp="on")
    with pytest.raises(RequestError, match="both guess tokens"):
        mlxr.load(folder, mtp="on", prompt_lookup=True)
    with pytest.raises(RequestError, match="for embeddings, which goes without its own head"):
        mlxr.load(folder, host="reference", mtp="on", changes=mlxr.Changes(output="hidden"))
    with pytest.raises(RequestError, match="mtp is 'maybe', expected auto, on, off"):
        mlxr.load(folder, mtp="maybe")  # type: ignore[arg-type]
    broken = without_tensor(tmp_path, "model.layers.2.mlp.up_proj.weight")
    with pytest.raises(WeightsError, match="lacks 1 of"):
        mlxr.load(broken, host="reference", mtp="on")
    with caplog.at_level(logging.WARNING), mlxr.load(broken, host="reference") as model:
        assert model.core.speculator is None and HIDDEN not in model.arena.stores
    assert "the model's own head is not used" in caplog.text


def without_tensor(folder: Path, name: str) -> Path:
    path = str(save_tiny(folder) / "model.safetensors")
    mx.save_safetensors(path, {key: array for key, array in mx.load(path).items() if key != name})
    return folder


def test_a_head_that_lacks_what_makes_it_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lack = "has a layer that guesses further tokens, but not model.layers.2.eh_proj.weight, without which"
    broken = without_tensor(tmp_path, "model.layers.2.eh_proj.weight")
    with pytest.raises(WeightsError, match=lack):
        mlxr.load(broken, host="reference", mtp="on")
    with caplog.at_level(logging.WARNING), mlxr.load(broken, host="reference") as model:
        assert model.core.speculator is None
    assert "the model's own head is not used: " in caplog.text and lack in caplog.text


def test_errors_that_heads_have_no_part_in_are_told_at_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is made again, without its head, only where that is at fault."""
    tried: list[object] = []
    make = load._compile_and_make
    monkeypatch.setattr(load, "_compile_and_make", lambda *given: (tried.append(given), make(*given))[1])
    broken = without_tensor(tmp_path, "model.layers.1.mlp.up_proj.weight")
    for where, options in ((folder, {"tokenizer": tmp_path / "none"}), (broken, {})):
        tried.clear()
        with pytest.raises(MlxrError):
            mlxr.load(where, host="reference", **options)  # type: ignore[arg-type]
        assert len(tried) == 1


def test_where_it_is_used(folder: Path) -> None:
    for options, uses in (({}, True), ({"mtp": "off"}, False), ({"prompt_lookup": True}, False)):
        with mlxr.load(folder, host="reference", **options) as model:  # type: ignore[arg-type]
            assert (HIDDEN in model.arena.stores) == uses
            assert (model._head is not None) == uses


def test_it_shares_weights_with_the_model(folder: Path) -> None:
    with mlxr.load(folder, host="reference", mtp="on") as model:
        ours, its = (host.weights for host in (model.host, head_of(model)._host))  # type: ignore[attr-defined]
        assert its["embedding"] is ours["embedding"]


def test_closing_frees_the_head_and_what_it_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a card, whose memory the next model may need at once."""
    gc.disable()
    try:
        model = mlxr.load(folder, host="reference", mtp="on")
        monkeypatch.setattr(type(model.host), "has_own_memory", True)
        arena, hosts = weakref.ref(model.arena), [weakref.ref(host) for host in (model.host, head_of(model)._host)]
        model.generate(PROMPTS[0], max_tokens=3)
        model.close()
        assert arena() is None and [host() for host in hosts] == [None, None]
    finally:
        gc.enable()


@pytest.mark.long
def test_a_model_with_states(tmp_path: Path) -> None:
    """Gated delta nets beside attention: guesses are undone in their states, and the head has none."""
    with mlxr.load(
        mtp_models.save("qwen3_next", tmp_path), host="reference", mtp="on", changes=replace(CHANGES, context=64)
    ) as model:
        text = mtp_models.prompt()
        prompts = [text, text[:5], text * 2]
        for sampling in (GREEDY, SAMPLED):
            plain = run(model, None, prompts, sampling)
            for wrong in (0, 1, 3):
                before = model.core.stats().accepted_tokens
                assert run(model, Eager(head_of(model), rights(prompts, plain, wrong)), prompts, sampling) == plain
                assert (model.core.stats().accepted_tokens > before) == (wrong > 0)


class Resting(Eager):
    """Asks the head until texts have some tokens; from then on it rests."""

    def draft(self, requests: Sequence[Request], tokens: int, room: int) -> None:
        super().draft(requests, tokens, room)
        for request in requests:
            if len(request.answer.tokens) > 45:
                request.draft.drafted, request.draft.rests_until = [], 1000


def test_steps_are_launched_ahead_while_it_rests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead: list[int] = []
    plan = EngineCore._launch

    def launch(core: EngineCore, step: Step, before: Step | None = None) -> bool:
        ahead.extend(step.ends if before is not None else ())
        return plan(core, step, before)

    monkeypatch.setattr(EngineCore, "_launch", launch)
    with mlxr.load(folder, host="reference", mtp="on", changes=CHANGES) as model:
        setattr(model.host, "pipelines", True)  # noqa: B010 (of the class, as far as types go)
        plain = run(model, None, PROMPTS[:1], SAMPLED, 60)
        ahead.clear()
        assert run(model, Resting(head_of(model)), PROMPTS[:1], SAMPLED, 60) == plain
    assert ahead and min(ahead) > 45
