"""The greatest logits of several ranks, as rank 0 gets them, give the tokens that all logits give."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.compiler.artifact import RankPlan
from mlxr.runtime.engine.constraint.constraint import Constraint
from mlxr.runtime.engine.sampling import Row, Sampler, Sampling, sample_rows
from mlxr.runtime.engine.speculation.speculator import Speculator
from mlxr.runtime.engine.step import Part, Step
from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.exchange import Floats
from mlxr.runtime.parallel.gather_result import gather_result
from mlxr.runtime.parallel.gather_result_lazily import gather_result_lazily
from mlxr_tests.few import examples
from mlxr_tests.hash_host import Answer, Guesser, HashEngine, HashHost


class Wire:
    """Ranks in one thread: rank 0 comes last."""

    def __init__(self) -> None:
        self.parts: list[Floats] = []

    def gather(self, x: Floats | None, bounds: Sequence[int], out: Floats) -> None:
        if x is not None:
            self.parts.insert(0, x)
        got = np.concatenate(self.parts, axis=1)
        if len(self.parts) == len(bounds) - 1:
            out[:] = got
        assert x is None or x.shape[1] in np.diff(bounds)

    def gather_lazily(self, x: mx.array, bounds: Sequence[int], rows: int) -> mx.array:
        self.gather(np.array(x), bounds, out := np.zeros((rows, bounds[-1]), np.float32))
        return mx.array(out)


def gathered(logits: Floats, bounds: tuple[int, ...], tops: int) -> tuple[Floats, int]:
    """What rank 0 gets of logits of which each rank has some columns, and how many numbers were sent.

    Lazy steps get the same bits.
    """
    wire, lazy_wire = Wire(), Wire()
    size = len(bounds) - 1
    out = np.full_like(logits, 7)
    for rank in reversed(range(size)):
        own = np.ascontiguousarray(logits[:, bounds[rank] : bounds[rank + 1]])
        plan = RankPlan(rank=rank, tensor=size, pipeline=1, result_bounds=bounds)
        gather_result(cast(Any, wire), plan, own, out if rank == 0 else np.empty_like(out), tops)
        lazy = gather_result_lazily(cast(Any, lazy_wire), plan, mx.array(own), len(own), tops)
        assert lazy.shape == out.shape and lazy.dtype == mx.float32
    np.testing.assert_array_equal(np.array(lazy).view(np.int32), out.view(np.int32))
    assert [part.shape for part in lazy_wire.parts] == [part.shape for part in wire.parts]
    return out, sum(part.size for part in wire.parts)


OPTIONS = st.fixed_dictionaries(
    {"top_k": st.integers(1, 40), "temperature": st.sampled_from([0, 1e-3, 0.7, 1, 100])},
    optional={
        "min_p": st.sampled_from([1e-6, 0.3, 1]),
        "typical_p": st.sampled_from([0.2, 0.999999]),
        "top_p": st.sampled_from([1e-9, 0.5, 0.9, 0.999999]),
    },
)


@settings(max_examples=examples(80, 40), deadline=None, database=None)
@given(data=st.data())
def test_tokens_are_those_of_all_logits(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([90, 700, 9001]))
    cuts = data.draw(st.lists(st.integers(1, size - 1), min_size=1, max_size=2, unique=True))
    count = data.draw(st.integers(1, 8))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    logits = rng.standard_normal((count, size)).astype(np.float32)
    # Equal logits; logits so near each other that probabilities are equal; ranks with few tokens that may come.
    logits = data.draw(st.sampled_from([logits, np.round(logits), logits * np.float32(1e-6)]))
    logits[rng.random(logits.shape) < data.draw(st.sampled_from([0, 0.1, 0.99]))] = -np.inf
    logits[:, 5] = 0
    for broken in data.draw(st.lists(st.sampled_from([np.nan, -np.nan, np.inf, -np.inf]), max_size=2)):
        logits[rng.integers(count), slice(None) if broken == -np.inf else rng.integers(size, size=3)] = broken
    samplers = [Sampler(Sampling(**data.draw(OPTIONS), seed=2), i) for i in range(count)]
    tops = max(sampler.tops for sampler in samplers)
    assert tops
    some, sent = gathered(logits, (0, *sorted(cuts), size), tops)
    assert sent <= min(count * size, count * 2 * tops * (len(cuts) + 1))
    for position in range(4):
        rows = [Row(sampler, position) for sampler in samplers]
        got, wanted = sample_rows(some, rows), sample_rows(logits, rows)
        for a, b in zip(got, wanted, strict=True):
            assert (a.token, str(a.error)) == (b.token, str(b.error))


class TopsHost(HashHost):
    """A host that gives no logits but the greatest where these are said to be enough."""

    gathers_tops = True

    def step(self, batch: Batch) -> Any:
        logits = super().step(batch)
        self.tops = [*getattr(self, "tops", []), batch.tops]
        if batch.tops and len(logits):
            order = np.argsort(-logits, axis=1, kind="stable")
            np.put_along_axis(logits, order[:, batch.tops :], -np.inf, axis=1)
        return logits


WARM: dict[str, Any] = {"temperature": 1.0, "seed": 4}
FEW: list[dict[str, Any]] = [{}, {**WARM, "top_k": 3}, {**WARM, "top_k": 5, "min_p": 0.1, "top_p": 0.8}]


@pytest.mark.parametrize(
    "options",
    [
        None,
        {"repetition_penalty": 1.3},
        {"frequency_penalty": 1.0},
        {"presence_penalty": -1.0, "top_k": 2, **WARM},
        {"dry_multiplier": 1.0, "dry_breakers": []},
        {"logit_bias": {3: 5.0}},
        {"min_tokens": 2},
        {"logprobs": 2},
        {"prompt_logprobs": 1, "max_tokens": 3},
        {**WARM, "top_p": 0.9},
        {**WARM, "min_p": 0.1},
        {**WARM, "typical_p": 0.5},
        {**WARM, "top_k": 257},
        WARM,
    ],
    ids=str,
)
def test_only_what_needs_few_logits_gets_few(options: dict[str, Any] | None) -> None:
    """One request that needs all logits has its steps gather all, and only these."""
    engine = HashEngine(make_host=TopsHost)
    engine.core.speculator = cast(Speculator, Guesser(engine))
    answers = []
    last = [] if options is None else [{"max_tokens": 4, **options}]
    for number, of_one in enumerate([*FEW, *last]):
        answer = Answer()
        (answer.request,) = engine.requests([number + 1, 9, 4], Sampling(**{"max_tokens": 30, **of_one}), answer.listen)
        engine.core.add(answer.request)
        answers.append(answer)
    engine.run()
    for answer in answers:
        assert answer.error is None and answer.tokens == engine.alone(answer.request)
    tops = engine.host.tops
    assert (0 in tops) == (options is not None) and all(tops[-3:])


def test_a_constraint_takes_all_logits() -> None:
    (request,) = HashEngine().requests([1, 2, 3], Sampling())
    parts = [Part(request, 3, True, [])]
    assert Step(parts).tops() == 1
    request.answer.constraint = cast(Constraint, SimpleNamespace())
    assert Step(parts).tops() == 0
