"""Embeddings: the hidden rows of prompts, pooled, however the prompts were read."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

import mlxr
from mlxr.compiler.errors import HostError
from mlxr.runtime.engine.default_pooling import default_pooling
from mlxr.runtime.engine.launch_step import launch_step
from mlxr.runtime.engine.pool import Pooling
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.hosts.batch import BatchRequest
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr.runtime.weights.weight_file import WeightFile
from mlxr_tests.few import few
from mlxr_tests.hash_host import HashEngine, rows_alone
from mlxr_tests.specs import floats
from mlxr_tests.storyteller import BF16, Q8_0, TINY, storyteller_spec, tiny_spec
from mlxr_tests.tolerances import check_logits

Rows = npt.NDArray[np.float32]
POOLING = "1_Pooling/config.json"
PROMPTS = [[1, *range(300, 300 + count)] for count in (40, 3, 0, 64, 17)]
FILES = {"tiny": (tiny_spec, TINY), "storyteller": (storyteller_spec, Q8_0)}


def loaded(name: str, host: str, **changes: Any) -> mlxr.Model:
    make, weights = FILES[name]
    options: dict[str, Any] = {"output": "hidden", "compute": "exact", "prefill_chunk": 32, "model": {"context": 80}}
    options["cache"] = {"max_sequences": 3, "block_size": 4, "dtype": "f32"}
    return mlxr.load(make(**(options | changes)), weights, host=host, threads=1 if host == "cpu" else None)


def rows_of(model: mlxr.Model, prompt: list[int]) -> Rows:
    """The hidden rows of a prompt that one step reads as a whole."""
    seq_id = model.pager.add_sequence()
    rows = model.host.read(launch_step(model.host, model.pager, [BatchRequest(seq_id, prompt, 0, "all")])).copy()
    model.pager.free(seq_id)
    return rows


@pytest.fixture(scope="module")
def model() -> Iterator[mlxr.Model]:
    """The tiny model, which reads prompts in steps of 32 tokens, 3 at a time."""
    with loaded("tiny", "cpu") as model:
        yield model


@pytest.mark.parametrize(
    ("name", "host"),
    few(
        [("tiny", "cpu"), ("tiny", "sim"), ("storyteller", "cpu")],
        [("tiny", "cpu")],
    ),
)
def test_pooled_rows_are_those_of_the_reference(name: str, host: str) -> None:
    """The reference's own rows times the output projection are the logits of the model that gives logits."""
    with loaded(name, "reference") as reference, loaded(name, "reference", output="logits") as ordinary:
        rows = [rows_of(reference, prompt) for prompt in PROMPTS]
        bound = cast(ReferenceHost, ordinary.host).bound
        output = floats(bound["output" if "output" in bound else "embedding"])
        check_logits("hidden @ output.T", rows[0] @ output.T, ordinary.logits(PROMPTS[0]), "f32")
    with loaded(name, host) as model:
        means = model.embed(PROMPTS, pooling="mean", normalize=False)
        lasts = model.embed(PROMPTS, pooling="last", normalize=False)
    check_logits("means", means, np.stack([row.mean(0, dtype=np.float64) for row in rows]), "f32")
    check_logits("lasts", lasts, np.stack([row[-1] for row in rows]), "f32")


def test_chunks_and_company_change_nothing(model: mlxr.Model) -> None:
    """Exact programs give the same bits, in a tight arena too."""
    alone = [model.embed([prompt]) for prompt in PROMPTS]
    np.testing.assert_array_equal(model.embed(PROMPTS), np.concatenate(alone))
    cache = {"max_sequences": 5, "block_size": 4, "dtype": "f32", "num_blocks": 20}
    with loaded("tiny", "cpu", prefill_chunk=7, cache=cache) as other:
        np.testing.assert_array_equal(other.embed(PROMPTS * 3), np.concatenate(alone * 3))
        assert other.core.stats().blocks_free == 20
        assert not other.core.scheduler.running and not other.core.scheduler.waiting


def test_lengths_dimensions_and_defaults(model: mlxr.Model) -> None:
    raw = model.embed(PROMPTS, normalize=False)
    whole = model.embed(PROMPTS)
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(whole, raw / np.linalg.norm(raw, axis=1, keepdims=True), rtol=1e-5)
    cut = model.embed(PROMPTS, dimensions=7)
    np.testing.assert_allclose(cut, raw[:, :7] / np.linalg.norm(raw[:, :7], axis=1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(raw, model.embed(PROMPTS, pooling="mean", normalize=False))
    assert model.embed(["Once upon a time"]).shape == (1, raw.shape[1])


def test_only_last_rows_come_with_a_shared_prefix(model: mlxr.Model) -> None:
    prompt = [1, *range(400, 430)]
    first = model.embed([prompt], pooling="last")
    before = model.core.stats().cached_tokens
    np.testing.assert_array_equal(model.embed([prompt], pooling="last"), first)
    cached = model.core.stats().cached_tokens - before
    assert cached >= 24
    model.embed([prompt], pooling="mean")
    assert model.core.stats().cached_tokens == before + cached


def test_a_prompt_may_fill_the_context(model: mlxr.Model) -> None:
    full = list(range(300, 380))
    rows = model.embed([full, full], pooling="last")
    np.testing.assert_array_equal(rows[0], rows[1])
    with pytest.raises(mlxr.PromptTooLongError, match="the prompt has 81 tokens; the context is 80: shorten"):
        model.embed([[*full, 5]])


def test_what_is_refused(model: mlxr.Model) -> None:
    hidden = model.artifact.plan.output_width
    for dimensions in (0, hidden + 1):
        with pytest.raises(mlxr.RequestError, match=f"dimensions is {dimensions}; .* have {hidden}"):
            model.embed(["x"], dimensions=dimensions)
    with pytest.raises(mlxr.RequestError, match="pooling is 'max', expected mean or last or cls"):
        model.embed(["x"], pooling=cast(Any, "max"))
    nothing: list[tuple[list[list[int]], str]] = [([], "no prompt was given"), ([[]], "the prompt has no tokens")]
    for prompts, message in nothing:
        with pytest.raises(mlxr.RequestError, match=message):
            model.embed(prompts)
    for ask in (model.generate, model.logits):
        with pytest.raises(mlxr.RequestError, match="was loaded for embeddings, and gives no logits"):
            ask([5, 6])
    with pytest.raises(mlxr.RequestError, match="was loaded for embeddings"):
        model.speculate()
    told = pytest.raises(mlxr.RequestError, match="was loaded to generate, and gives no hidden rows")
    with loaded("tiny", "cpu", output="logits") as ordinary, told:
        ordinary.embed(["x"])


@pytest.mark.parametrize("pipelines", [False, True])
def test_requests_that_pool_among_others_that_are_preempted(pipelines: bool) -> None:
    """In an arena that is too small for all, with a step that fails and one that is interrupted."""
    rng, engine = np.random.default_rng(5), HashEngine(num_blocks=16, max_tokens=9, pipelines=pipelines)
    prefix = rng.integers(0, 32, 13).tolist()
    pooled, answers = [], []
    for number in range(40):
        prompt = [*prefix[: rng.integers(0, 14)], *rng.integers(0, 32, rng.integers(1, 40)).tolist()]
        if number % 4 == 0:
            answers.append(engine.add(prompt, max_tokens=int(rng.integers(1, 12))))
            continue
        news: list[Any] = []
        pooling: Pooling = "mean" if number % 3 else "last"
        pooled += [(request, news) for request in engine.requests(prompt, Sampling(), news.append, pooling=pooling)]
        engine.core.add(pooled[-1][0])
    for _ in range(5):
        engine.core.step()
    engine.host.faults.append("read")
    engine.host.interruption = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        engine.core.step()
    engine.run()
    engine.check_empty()
    assert engine.core.scheduler.preemptions
    for request, news in pooled:
        (end,) = news
        if isinstance(end, HostError):
            continue
        assert end.finish_reason == "length" and end.token_id is None
        rows = rows_alone(request.answer.tokens)
        assert request.pool is not None and len(request.answer.tokens) == request.prompt_length
        expected = rows[-1] if request.pool.pooling == "last" else rows.mean(0, dtype=np.float64)
        np.testing.assert_allclose(request.pooled, expected, rtol=1e-6)
    assert sum(isinstance(news[0], HostError) for _, news in pooled) <= 4
    for answer in answers:
        assert answer.error or answer.request.answer.completion.token_ids == engine.alone(answer.request)


def test_engines_embed_for_many_tasks(model: mlxr.Model) -> None:
    """Tasks that leave, and prompts that are refused, change nothing for others."""
    expected = model.embed(PROMPTS, normalize=False)
    changes = mlxr.Changes(output="hidden", compute="exact", cache_dtype="f32", activation_dtype="f32")

    async def ask(engine: mlxr.Engine) -> None:
        calls = [asyncio.create_task(engine.embed(PROMPTS)) for _ in range(6)]
        bad = asyncio.create_task(engine.embed([*PROMPTS, [10**6]]))
        await asyncio.sleep(0.01)
        calls.pop().cancel()
        for vectors in await asyncio.gather(*calls):
            check_logits("vectors", np.stack(vectors), expected, "f32")
        with pytest.raises(mlxr.RequestError, match="outside the vocabulary"):
            await bad
        assert len(await engine.embed([[5 + i % 50] for i in range(300)])) == 300

    with mlxr.Engine(TINY, host="cpu", threads=1, max_sequences=4, changes=changes) as engine:
        asyncio.run(ask(engine))
        stats = engine.stats()
        assert not stats.running and not stats.waiting and stats.blocks_free == stats.blocks
        assert stats.generated_tokens == 0


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "mean"),
        ({POOLING: '{"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": false}'}, "last"),
        ({POOLING: '{"pooling_mode": "lasttoken"}'}, "last"),
        ({POOLING: '{"pooling_mode_cls_token": true}'}, "cls"),
        ({POOLING: '{"pooling_mode_max_tokens": true}'}, "pooling max, which is not supported"),
        (
            {POOLING: '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}'},
            "mean and cls",
        ),
        ({POOLING: '{"pooling_mode_mean_tokens": true, "include_prompt": false}'}, "include_prompt"),
        ({POOLING: "{}"}, "the pooling none"),
        (
            {"modules.json": '[{"type": "sentence_transformers.models.CNN"}]'},
            "module 'CNN', which is not",
        ),
        ({"modules.json": "{}"}, "holds no list of modules"),
        (
            {
                "modules.json": '[{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "9_P"}]',
                "9_P/config.json": '{"pooling_mode_lasttoken": true}',
            },
            "last",
        ),
    ],
)
def test_models_say_their_pooling(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    file = WeightFile(tmp_path / "model.safetensors", "safetensors", {})
    if expected in ("mean", "last", "cls"):
        assert default_pooling(file) == expected
    else:
        with pytest.raises(mlxr.RequestError, match=expected):
            default_pooling(file)


@pytest.mark.parametrize(
    ("number", "expected"), [(None, "mean"), (0, "mean"), (1, "mean"), (3, "last"), (2, "cls"), (4, None)]
)
def test_gguf_files_say_their_pooling(number: int | None, expected: str | None) -> None:
    metadata: dict[str, Any] = {"general.architecture": "qwen3"}
    if number is not None:
        metadata["qwen3.pooling_type"] = number
    file = WeightFile(Path("x.gguf"), "gguf", {}, metadata)
    if expected is not None:
        assert default_pooling(file) == expected
    else:
        with pytest.raises(mlxr.RequestError, match="pooling_type asks for the pooling rank"):
            default_pooling(file)


@pytest.mark.parametrize("head", few(["none", "unread"], ["none"]))
def test_a_head_is_neither_needed_nor_read(tmp_path: Path, head: str) -> None:
    """AutoModel saves models without a head, and without `model.` before names. The other head nothing could read."""
    config = json.loads(BF16.with_name("config.json").read_text())
    tensors = dict(mx.load(str(BF16)))
    config["tie_word_embeddings"] = False
    if head == "none":
        config["architectures"] = ["LlamaModel"]
        tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    else:
        tensors["lm_head.weight"] = mx.zeros((3, 8), mx.int8)
    mx.save_safetensors(str(tmp_path / "model.safetensors"), tensors)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / POOLING).write_text('{"pooling_mode_lasttoken": true}')
    changes = mlxr.Changes(output="hidden", context=64, compute="exact")
    with mlxr.load(BF16.parent, host="cpu", threads=1, changes=changes) as whole:
        expected = whole.embed(PROMPTS[:3], pooling="last")
    with mlxr.load(tmp_path, host="cpu", threads=1, changes=changes) as model:
        np.testing.assert_array_equal(model.embed(PROMPTS[:3]), expected)
    if head == "none":
        with pytest.raises(mlxr.SpecError, match=r"architectures is \[.*; expected a language model"):
            mlxr.load(tmp_path, host="cpu")
