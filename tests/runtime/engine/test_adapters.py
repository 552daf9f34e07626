"""Adapters in an engine: each request its own, loaded and unloaded while it runs, told apart by the prefix cache."""

from pathlib import Path
from typing import Any

import pytest

import mlxr
from mlxr.compiler.errors import RequestError, WeightsError
from mlxr.loading.adapter_paths import GivenAdapters
from mlxr.runtime.adapters.adapter_name import adapter_name
from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr_tests.tiny_llama import tiny_adapter, tiny_llama

PROMPT = [1, 5, 9, 2, 7, 30, 44, 3, 3, 8, 21, 60, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
GREEDY = mlxr.Sampling(max_tokens=8, ignore_eos=True)
EXACT = mlxr.Changes(compute="exact", cache_dtype="f32", adapters=mlxr.Adapters(rank=8, slots=2))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    made = {name: tiny_adapter(seed, rank=6) for seed, name in enumerate("abc")}
    merged = {f"merged-{name}": tiny_llama(root / f"merged-{name}", one.deltas) for name, one in made.items()}
    return {"base": tiny_llama(root / "base"), **{n: one.peft(root / n) for n, one in made.items()}, **merged}


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> dict[str | None, list[int]]:
    """What each adapter's merged model says."""
    said = {}
    for name in (None, "a", "b", "c"):
        folder = folders["base" if name is None else f"merged-{name}"]
        with mlxr.load(
            str(folder), host="reference", changes=mlxr.Changes(compute="exact", cache_dtype="f32")
        ) as model:
            said[name] = model.generate(PROMPT, sampling=GREEDY).token_ids
    assert len({tuple(ids) for ids in said.values()}) == 4
    return said


@pytest.fixture
def engine(folders: dict[str, Path]) -> mlxr.Engine:
    with mlxr.Engine(str(folders["base"]), host="reference", max_sequences=4, changes=EXACT) as engine:
        yield engine


def ids(engine: EngineThread, adapter: str | None, **options: float) -> list[int]:
    return engine.generate_all([PROMPT], GREEDY, adapter=adapter, **options)[0].token_ids


def test_requests_of_different_adapters_in_one_batch(
    engine: mlxr.Engine, folders: dict[str, Path], expected: dict[str | None, list[int]]
) -> None:
    for name in "ab":
        engine.load_adapter(folders[name])
    assert [adapter.name for adapter in engine.adapters()] == ["a", "b"]
    streams = {name: engine.stream(PROMPT, GREEDY, adapter=name) for name in (None, "a", "b")}
    said = {name: [event.token_id for event in stream] for name, stream in streams.items()}
    assert said == {name: expected[name] for name in said}
    assert max(record.decoding for record in engine.recent_steps()) == 3
    assert engine.launch_counts()["adapter_down"] > 0


def test_the_prefix_cache_tells_them_apart(
    engine: mlxr.Engine, folders: dict[str, Path], expected: dict[str | None, list[int]]
) -> None:
    engine.load_adapter(folders["a"])
    for name in (None, "a", None, "a"):
        assert ids(engine, name) == expected[name]
    before = engine.stats().cached_tokens
    assert ids(engine, "a") == expected["a"]
    assert engine.stats().cached_tokens - before >= 16, "the same adapter's blocks are found"
    before = engine.stats().cached_tokens
    ids(engine, "a", adapter_scale=0.5)
    assert engine.stats().cached_tokens == before, "another scale is another adapter"
    assert ids(engine, "a", adapter_scale=0.0) == expected[None]


def test_hot_loading_and_unloading(
    engine: mlxr.Engine, folders: dict[str, Path], expected: dict[str | None, list[int]]
) -> None:
    with pytest.raises(RequestError, match="there is no adapter 'a'; loaded are: none"):
        ids(engine, "a")
    for name in "ab":
        engine.load_adapter(folders[name])
    with pytest.raises(RequestError, match=r"all 2 places for adapters are in use \(a, b\)"):
        engine.load_adapter(folders["c"])
    running = engine.stream(PROMPT, mlxr.Sampling(max_tokens=30, ignore_eos=True), adapter="a")
    next(running)
    engine.unload_adapter("a")
    with pytest.raises(RequestError, match="there is no adapter 'a'"):
        ids(engine, "a")
    with pytest.raises(RequestError, match="are in use"):  # until its last answer has ended
        engine.load_adapter(folders["c"])
    rest = [event.token_id for event in running]
    assert [*expected["a"][1:]] == rest[:7]
    engine.load_adapter(folders["c"])
    assert ids(engine, "c") == expected["c"]
    assert ids(engine, "b") == expected["b"]
    engine.load_adapter(folders["a"], name="b")  # in the place of another of that name
    assert ids(engine, "b") == expected["a"]
    assert ids(engine, None) == expected[None]


def test_too_high_a_rank(engine: mlxr.Engine, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"has rank 16, .* of rank 8: load it for more \(--adapter-rank 16\)"):
        engine.load_adapter(tiny_adapter(1, rank=16).peft(tmp_path))
    assert engine.adapters() == ()


def test_an_adapter_for_all(folders: dict[str, Path], expected: dict[str | None, list[int]]) -> None:
    changes = mlxr.Changes(compute="exact", cache_dtype="f32")
    with mlxr.load(str(folders["base"]), host="reference", changes=changes, adapter=folders["b"]) as model:
        assert model.artifact.spec.adapters == mlxr.Adapters(rank=8, slots=1)
        assert model.generate(PROMPT, sampling=GREEDY).token_ids == expected["b"]
        told: list[Any] = []
        late, waiting = model.make_requests([PROMPT] * 2, GREEDY, told.append)
        model.core.add(waiting)
        with pytest.raises(RequestError, match="are in use"):
            model.load_adapter(folders["a"], name="b")
        model.core.cancel(waiting)
        model.load_adapter(folders["a"], name="b")
        model.core.add(late)
        assert str(told[-1]) == "the adapter 'b' was unloaded"
        model.default_adapter = None
        assert model.generate(PROMPT, sampling=GREEDY).token_ids == expected[None]
    with (
        mlxr.load(str(folders["base"]), host="reference", changes=changes) as plain,
        pytest.raises(RequestError, match="loaded without places for adapters"),
    ):
        plain.load_adapter(folders["a"])


def test_names_and_scales(engine: mlxr.Engine, folders: dict[str, Path]) -> None:
    assert [adapter_name(path) for path in ("x/_my löra (1)", "a/fox-2.gguf", "…")] == ["my-l-ra-1", "fox-2", "adapter"]
    for name in ("", "a b", "../x", "x" * 200):
        with pytest.raises(RequestError, match="an adapter's name is"):
            engine.load_adapter(folders["a"], name=name or " ")
    for scale in (float("nan"), float("inf"), True):
        with pytest.raises(RequestError, match="an adapter's scale is"):
            engine.load_adapter(folders["a"], scale=scale)
    with pytest.raises(RequestError, match="the scale of the adapter, 'much', is not a number"):
        mlxr.load(str(folders["base"]), host="reference", adapter=f"{folders['a']}:much")


def test_places_that_there_cannot_be() -> None:
    wrong = {"257 places": GivenAdapters(slots=257), "-1 places": GivenAdapters(slots=-1)}
    wrong |= {f"rank {rank} are": GivenAdapters(slots=1, rank=rank) for rank in (-3, 600)}
    for message, given in wrong.items():
        with pytest.raises(RequestError, match=message):
            assert given and given.places()


@pytest.mark.long
def test_calls_are_timed_and_guesses_tried(folders: dict[str, Path], expected: dict[str | None, list[int]]) -> None:
    """What makes batches by itself, or has several tokens of a sequence in one."""
    changes = mlxr.Changes(compute="exact", cache_dtype="f32")
    with mlxr.load(
        str(folders["base"]), host="cpu", changes=changes, adapter=folders["c"], prompt_lookup=True
    ) as model:
        assert model.generate(PROMPT, sampling=GREEDY).token_ids == expected["c"]
        assert model.host.time_calls()
