"""Steps in turn, each with the likeliest tokens of the one before: what steps alone give, in one call on host cpu."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.runtime.engine.launch_step import launch_step
from mlxr.runtime.engine.model import Model
from mlxr.runtime.hosts.batch import Batch, BatchRequest, Int32Array
from mlxr_tests.storyteller import TINY, tiny_spec

MOST = [6, 2, 1]
"""Steps of each text, the one that reads it included."""
NARROW, IDS = 600, np.random.default_rng(1).permutation(640)[:600].astype(np.int32)


@pytest.fixture(scope="module", params=["cpu", "reference", "lazy"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    """`lazy`: the reference, taken for a host that pipelines."""
    cache = {"num_blocks": 8, "max_sequences": 3, "mode": "paged"}  # a program that test_draft_model.py has, too
    spec = tiny_spec(model={"context": 64}, cache=cache, prefill_chunk=16, compute="exact")
    name = "reference" if request.param == "lazy" else request.param
    with mlxr.load(compile_spec(spec).artifact, TINY, host=name) as model:
        model.host.pipelines = request.param == "lazy"
        yield model


def texts() -> list[list[int]]:
    chance = np.random.default_rng(2)
    return [chance.integers(300, 640, count).tolist() for count in (6, 3, 7)]


def chained(model: Model, width: int, ids: Int32Array | None) -> list[list[int]]:
    """The tokens of all steps of three texts, of which fewer and fewer take part."""
    pager, tile = model.pager, model.host.plan.query_tile
    seq_ids, read = [pager.add_sequence() for _ in MOST], texts()
    steps = [Batch.build([BatchRequest(i, text, 0) for i, text in zip(seq_ids, read, strict=True)], pager, tile)]
    for step in range(1, MOST[0]):
        going = [i for i, most in enumerate(MOST) if most > step]
        requests = [BatchRequest(seq_ids[i], [0], len(read[i]) + step - 1) for i in going]
        steps.append(_sharing(steps[-1], Batch.build(requests, pager, tile)))
    pager.take_copies()
    found = model.host.chain(steps, width, ids)
    for seq_id in seq_ids:
        pager.free(seq_id)
    assert found.later > 0
    return found.tokens


def _sharing(before: Batch, step: Batch) -> Batch:
    """A step that has the arrays of the one before where they are equal, as a head's steps do."""
    names = ("query_start", "logit_rows", "block_tables")
    same = {name: array for name in names if np.array_equal(array := getattr(before, name), getattr(step, name))}
    return replace(step, **same)


def alone(model: Model, text: Sequence[int], most: int, width: int, ids: Int32Array | None) -> list[int]:
    """The same of one text, a step at a time."""
    seq_id, found, new, start = model.pager.add_sequence(), list[int](), list(text), 0
    for _ in range(most):
        logits = model.host.read(launch_step(model.host, model.pager, [BatchRequest(seq_id, new, start)]))
        column = int(np.argmax(logits[0, :width]))
        start += len(new)
        new = [column if ids is None else int(ids[column])]
        found += new
    model.pager.free(seq_id)
    return found


@pytest.mark.parametrize(("width", "ids"), [(640, None), (NARROW, IDS), (20, None)], ids=["all", "named", "first"])
def test_the_tokens_are_those_of_steps_alone(model: Model, width: int, ids: Int32Array | None) -> None:
    found = chained(model, width, ids)
    assert [len(step) for step in found] == [3, 2, 1, 1, 1, 1]
    wanted = [alone(model, text, most, width, ids) for text, most in zip(texts(), MOST, strict=True)]
    assert [[step[i] for step in found if i < len(step)] for i in range(3)] == wanted
    assert len({token for tokens in wanted for token in tokens}) > 3


def test_on_the_cpu_it_is_one_call(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    step, steps = model.host.step, list[Batch]()
    monkeypatch.setattr(model.host, "step", lambda batch: steps.append(batch) or step(batch))
    before = sum(model.host.launches.values())
    chained(model, 640, None)
    assert len(steps) == (0 if model.host.name == "cpu" else MOST[0])
    assert sum(model.host.launches.values()) - before > MOST[0]


def test_a_text_that_is_not_read_to_its_end_has_no_token(model: Model) -> None:
    seq_id = model.pager.add_sequence()
    step = Batch.build([BatchRequest(seq_id, texts()[0], 0, "none")], model.pager, model.host.plan.query_tile)
    model.pager.take_copies()
    assert model.host.chain([step], 640).tokens == [[]]
    model.pager.free(seq_id)
