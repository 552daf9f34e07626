"""When steps on a card may follow others without a batch, and when they must not: then no sequence has grown."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.errors import HostError
from mlxr.runtime.engine.launch_step import more_steps
from mlxr.runtime.hosts.batch import Batch, BatchRequest, DecodeRequests
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr.runtime.hosts.likeliest import LikeliestOfSteps
from mlxr_tests.hash_card import HashCard, use_hash_card
from mlxr_tests.hash_host import HashEngine

pytestmark = pytest.mark.skipif(has_cuda(), reason="kernels that do nothing would be kept for the real card")
STARTS = [5, 2]


class Steps:
    """Two sequences that decode, and a third one that does not."""

    def __init__(self) -> None:
        self.engine = HashEngine(24, 4, 4, context=32, pipelines=True, make_host=HashCard)
        self.host, self.pager = self.engine.host, self.engine.pager
        self.ids, self.third, self.starts = (
            [self.pager.add_sequence() for _ in STARTS],
            self.pager.add_sequence(),
            STARTS,
        )
        prompts = [BatchRequest(i, [1] * start, 0) for i, start in zip(self.ids, STARTS, strict=True)]
        self.host.step(Batch.build([*prompts, BatchRequest(self.third, [2], 0)], self.pager, 4))
        self.pager.take_copies()
        self.last = self.likeliest(mx.array([3, 4], mx.int32))
        assert self.last is not None

    def likeliest(self, tokens: mx.array) -> LikeliestOfSteps | None:
        batch = Batch.build(DecodeRequests(self.ids, [0, 0], self.starts), self.pager, 4, tokens)
        self.starts = [start + 1 for start in self.starts]
        return self.host.likeliest_of_steps(batch)

    def go_on(self, count: int = 1, after: LikeliestOfSteps | None = None, first: int = 0) -> LikeliestOfSteps | None:
        more = more_steps(self.host, self.pager, self.ids, self.starts, count, None, first)
        steps = self.host.go_on(after or self.last, more)
        assert self.lengths() == [start + count * (steps is not None) for start in self.starts]
        return steps

    def lengths(self) -> list[int]:
        return [self.pager.length(seq_id) for seq_id in self.ids]

    def fail(self) -> None:
        self.host.faults.append("launch")
        with pytest.raises(HostError, match="at its launch"):
            self.go_on()
        self.starts = self.lengths()

    def fail_on_the_card(self) -> None:
        self.host.faults.append("read")
        steps = self.go_on()
        assert steps is not None
        self.last, self.starts = steps, self.lengths()
        with pytest.raises(HostError, match="on the device"):
            steps.read()

    def interrupt(self) -> None:
        self.host.interruption = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            self.go_on()
        self.starts = self.lengths()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    use_hash_card(monkeypatch)
    return Steps()


def test_steps_go_on(steps: Steps) -> None:
    steps.last = steps.go_on()
    steps.starts = steps.lengths()
    assert steps.go_on() is not None


BETWEEN = pytest.mark.parametrize(
    "between",
    [
        lambda steps: steps.host.step(Batch.build([BatchRequest(steps.third, [5], 1)], steps.pager, 4)),
        lambda steps: steps.host.copy_blocks([(0, 20)]),
        lambda steps: steps.host.write_blocks([20], np.zeros((1, 32), np.uint8)),
        lambda steps: steps.likeliest(steps.last.tokens),
        Steps.fail,
        Steps.fail_on_the_card,
        Steps.interrupt,
    ],
    ids=["prompt", "copy", "write", "others", "launch-fails", "card-fails", "interrupt"],
)


@BETWEEN
def test_steps_do_not_go_on_where_something_came_between(steps: Steps, between: Callable[[Steps], object]) -> None:
    between(steps)
    assert steps.go_on() is None


@BETWEEN
def test_no_more_of_prepared_steps_is_given_where_something_came_between(
    steps: Steps, between: Callable[[Steps], object]
) -> None:
    prepared = steps.go_on(2, first=1)
    assert prepared is not None and prepared.left == 1
    steps.last, steps.starts = prepared, steps.lengths()
    if between in (Steps.fail, Steps.fail_on_the_card, Steps.interrupt):
        assert steps.go_on() is None, "others follow once all are given"
        steps.host.recover()
    else:
        between(steps)
    before = len(steps.host.steps)
    assert steps.host.run_on(prepared, 1, 2, None) is None and len(steps.host.steps) == before


def test_prepared_steps_are_given_little_by_little(steps: Steps) -> None:
    prepared = steps.go_on(2, first=1)
    assert prepared is not None
    steps.last, steps.starts = prepared, steps.lengths()
    assert steps.host.run_on(prepared, 1, 1, lambda: False) == 1 and prepared.left == 0
    first, second = prepared.read(early=1)[0].tolist(), prepared.read(before=-1)[0].tolist()
    assert len(first) == len(second) == 1 and prepared.read()[0].tolist() == first + second


def test_steps_do_not_go_on_beyond_the_columns_of_their_tables(steps: Steps) -> None:
    """Two columns, of four tokens each."""
    assert steps.starts == [6, 3]
    assert steps.go_on(3) is None
    assert steps.go_on(2) is not None


def test_steps_do_not_go_on_where_a_block_is_shared(steps: Steps) -> None:
    """Its copy, which MLX launches, would come after them."""
    steps.pager.take_copies()
    steps.pager.fork(steps.ids[1])
    assert steps.go_on() is None
