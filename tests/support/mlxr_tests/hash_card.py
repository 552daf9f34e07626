"""A `HashHost` on a card: its likeliest steps are those of host cuda, whose recorded graphs compute hashes.

All that host cuda does on the CPU is its own code: which steps are recorded, what of a batch is sent again, when steps
go on without a batch. What the graph of a step reads are the numbers in the batch's memory alone. So a block table, a
slot or a position that was not renewed shows as a failure or as a wrong token.
"""

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from mlxr.compiler.artifact import of_group
from mlxr.compiler.artifact.launch import Condition
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.batch import Batch, BlocksOfGroup, layout_of_decode
from mlxr.runtime.hosts.binding import Dims, batch_dims, phase_of
from mlxr.runtime.hosts.cuda import recorded_step
from mlxr.runtime.hosts.cuda.decode_steps import DecodeSteps
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr.runtime.hosts.cuda.recorded_batch import RecordedBatch
from mlxr.runtime.hosts.cuda.recorded_memory import MOST_STEPS
from mlxr.runtime.hosts.likeliest import Grown, LikeliestOfSteps, MoreSteps
from mlxr.runtime.hosts.mlx import padding
from mlxr.runtime.hosts.mlx.host import MlxHost
from mlxr_tests.fake_card import SimLauncher, choose, draw, use_card
from mlxr_tests.hash_host import VOCAB, HashHost

BORDER = 21
"""The context from which on a step has other launches."""


def use_hash_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives a card to the `HashCard`s that are made from now on; block tables soon need more columns."""
    card: Any = SimLauncher(None)  # type: ignore[arg-type]  # it runs nothing of an artifact
    use_card(monkeypatch, card.artifact, card)
    card.record(monkeypatch)
    monkeypatch.setattr(recorded_step, "RecordedStep", _HashStep)
    monkeypatch.setattr(recorded_step, "ChosenOfSteps", _HashChosen)
    monkeypatch.setattr(recorded_step, "Event", _HashEvent)
    monkeypatch.setattr(padding, "_COLUMNS", 2)


class HashCard(HashHost):
    """See the module.

    Attributes:
        gone_on: how many launches went on after others without a batch that is built.
        renewed: how many of them read other block tables than those before.
        num_together: how many of them were of several steps.
        num_early: how many times a part of a launch was read before its last steps.
        num_more: how many times more was given of a launch.
        num_cut: how many launches were not given to their end.
        patience: how many places pass in which an interruption could come, before the planned one does.
    """

    _traces = True
    likeliest_of_steps, steps_of, completed = CudaHost.likeliest_of_steps, CudaHost.decode, CudaHost.completed
    arrays_of, failures = MlxHost.arrays_of, MlxHost.failures
    has_types = has_adapters = False

    def __init__(self, geometry: Any, max_tokens: int, *, pipelines: bool = True, state_slots: int = 0) -> None:
        super().__init__(geometry, max_tokens, pipelines=pipelines, state_slots=state_slots)
        conditions = [Condition(dim="context", maximum=BORDER - 1), Condition(dim="context", minimum=BORDER)]
        launches = [SimpleNamespace(body=None, conditions=condition.parts) for condition in conditions]
        phase = SimpleNamespace(name="decode", launches=launches, buffers=[], outputs=["logits"])
        self.program: Any = SimpleNamespace(phase=lambda name: phase)
        self.launcher: Any = SimpleNamespace(
            exchange=None,
            handover=None,
            running=lambda phase, dims: (),
            choice=lambda phase, dims: (dims["context"] >= BORDER,),
        )
        self.plan.is_part, self.plan.weights, self.plan.output_width = False, (), VOCAB
        groups = {name for group in range(1, len(geometry.groups)) for name in _names(group)}
        others = ("token_ids", "positions", "context_lens", "query_start", "dims", "state_table")
        self._read = {"decode": {*others, *_names(0), *groups}}
        self.arena.before_access = None
        self.gone_on = self.renewed = self.num_together = self.num_early = self.patience = 0
        self.is_going_on = self.breaks = False
        self.num_more, self.num_cut, self.most_prepared = 0, 0, 14
        card, self._peers = self, _Nothing()
        self._decodes = DecodeSteps(card, *[self._peers] * 4)

    def step(self, batch: Batch) -> Any:
        """See `Host.step`; steps that are not recorded, as of prompts, are those of `HashHost`."""
        if phase_of(self.plan, batch) == "prefill" or batch.num_rows < batch.num_seqs:
            return super().step(batch)
        phase = self.program.phase("decode")
        logits, self.arena.token = CudaHost.launch_step(
            self,
            phase,
            batch_dims(batch),
            self.arrays_of(phase, batch),
            0,  # type: ignore[arg-type]  # it has all of it
        )
        return logits

    def go_on(self, after: LikeliestOfSteps, more: MoreSteps) -> LikeliestOfSteps | None:
        """See `Host.go_on`."""

        def grow() -> Grown | None:
            assert not self.is_going_on, "sequences grow once"
            self.is_going_on = True
            grown = more.grow()
            self.interrupt()
            return grown

        try:
            tables = self._decodes._inputs._steady
            steps = CudaHost.go_on(self, after, more._replace(grow=grow))  # type: ignore[arg-type]  # it has all of it
        finally:
            self.is_going_on = False
        if steps is not None:
            self.gone_on += 1
            self.renewed += self._decodes._inputs._steady is not tables
            self.num_together += more.steps > 1
        return steps

    def run_on(self, steps: LikeliestOfSteps, count: int, until: int, called: Callable[[], bool] | None) -> int | None:
        """See `Host.run_on`."""
        left = steps.left
        ended = CudaHost.run_on(self, steps, count, until, called)  # type: ignore[arg-type]  # it has all of it
        self.num_more += steps.left < left
        return ended

    def recover(self) -> None:
        """See `CudaHost.recover`."""
        self.breaks = False
        self._new_token()
        self._decodes.forget()

    def interrupt(self) -> None:
        """See `HashHost.interrupt`."""
        if self.interruption is not None and self.patience:
            self.patience -= 1
            return
        super().interrupt()

    def copy_blocks(self, copies: Sequence[tuple[int, int]], group: int = 0) -> None:
        """See `Host.copy_blocks`: by MLX, so after it no step goes on."""
        assert not self.is_going_on, "MLX would copy after the recorded steps"
        super().copy_blocks(copies, group)
        self._new_token()

    def write_blocks(self, block_ids: Sequence[int], data: npt.NDArray[np.uint8], group: int | None = 0) -> None:
        """See `Host.write_blocks`."""
        super().write_blocks(block_ids, data, group)
        self._new_token()

    def run(self, batch: RecordedBatch, logits: mx.array, *, is_late: bool, chooses: bool, draws: bool) -> None:
        """What the graph of a step does, which has the launches of contexts from the border on, or those before."""
        rows = len(logits)
        memory = np.array(batch.memory, copy=False)

        def numbers(name: str, count: int) -> npt.NDArray[np.int32]:
            return memory[batch.begins[name] :][:count].copy()

        def table(name: str) -> npt.NDArray[np.int32]:
            columns = int(numbers(name, 1)[0])
            return numbers(name, 1 + rows * columns)[1:].reshape(rows, columns)

        query_start, query_tiles, logit_rows = layout_of_decode(rows)
        assert (numbers("query_start", rows + 1) == query_start).all()
        of_groups = [_names(group) for group in range(len(self.arena.geometry.groups))]
        first, *others = (BlocksOfGroup(numbers(slots, rows), table(tables)) for slots, tables in of_groups)
        given = Batch(
            tokens=numbers("token_ids", rows),
            positions=numbers("positions", rows),
            slots=first.slots,
            query_start=query_start,
            context_lens=numbers("context_lens", rows),
            block_tables=first.block_tables,
            logit_rows=logit_rows,
            query_tiles=query_tiles,
            query_tile=self.plan.query_tile,
            state_table=table("state_table") if self.states else None,
            others=tuple(others),
        )
        assert (given.context_lens.max() >= BORDER) == is_late, "its launches are others"
        token = self.arena.token
        try:
            np.array(logits, copy=False)[...] = np.array(super().step(given))
        finally:
            self.arena.token = token  # which MLX alone makes anew
        if chooses:
            self.breaks, self._breaks = self.breaks or self._breaks, False
            numbers_of_batch, bits = np.array(batch.numbers), np.array(logits).view(np.uint32).ravel()
            if draws:
                draw(bits, numbers_of_batch, memory, _chosen_at(batch.chosen, rows), batch._asked)
            else:
                choose(bits, numbers_of_batch, memory, _chosen_at(batch.chosen, rows), rows)
        self.interrupt()

    def _new_token(self) -> None:
        self.arena.token = self.arena.token + 0


class _HashStep(recorded_step.RecordedStep):
    """A step whose graph is `HashCard.run`."""

    def __init__(
        self, steps: Any, batch: RecordedBatch, phase: object, dims: Dims, kernel: object, draws: bool
    ) -> None:
        self._steps, self.batch, self._card, self._draws = steps, batch, steps.host, draws
        self._is_late = dims["context"] >= BORDER
        self.launches = Counter({"hash": 1})
        self.logits = mx.zeros((dims["rows"], VOCAB))
        mx.eval(self.logits)

    def build(self, *, chooses: bool) -> None:
        """See `RecordedStep.build`."""

    def start(self, stream: int, end: object, *, chooses: bool) -> None:
        """See `RecordedStep.start`."""
        self._card.run(self.batch, self.logits, is_late=self._is_late, chooses=chooses, draws=self._draws)
        _HashEvent.num_started += 1


class _HashEvent:
    """Notes after which step it was recorded, of all that have been started."""

    num_started = after = 0

    def record(self, stream: int) -> None:
        """See `launch_graph.Event`."""
        self.after = self.num_started

    def wait(self) -> None:
        """See `launch_graph.Event`; all steps end when they are started."""


class _HashChosen(recorded_step.ChosenOfSteps):
    """Steps that may have failed on the card."""

    def __init__(self, steps: Any, *given: Any) -> None:
        self._card, self._before, self._breaks = steps.host, _HashEvent.num_started, False
        super().__init__(steps, *given)
        assert {step._draws for step in self.recorded} == {self.asked is not None}, "graphs draw if rows ask for it"

    @property
    def given(self) -> int:
        """See `ChosenOfSteps`; it is set once they have been started."""
        return self._given

    @given.setter
    def given(self, count: int) -> None:
        self._given = count
        self._breaks, self._card.breaks = self._breaks or self._card.breaks, False

    def read(self, before: int = 0, early: int = 0) -> npt.NDArray[np.int32]:
        """See `LikeliestOfSteps.read`."""
        self._card.num_early += early > 0
        assert not early or vars(self._passed)["after"] >= self._before + early, "what was waited for"
        self._card.num_cut += not early and self.left > 0
        with self._card.failures():
            self._card.interrupt()
            if self._breaks:
                raise HostError("the steps failed on the device")
        return super().read(before, early)


class _Nothing:
    """Stands in for what these steps have no need of: step kernels, peers, recorded prompts."""

    layers = exchange = unmet = None

    def of(self, dims: Dims) -> None:
        """See `StepKernels.of`."""

    def lacks(self, dims: Dims) -> bool:
        """See `StepKernels.lacks`."""
        return False

    def follow(self, wait: object) -> None:
        """See `StepKernels.follow`."""


def _chosen_at(address: int, rows: int) -> npt.NDArray[np.uint32]:
    return np.ctypeslib.as_array((ctypes.c_uint32 * (2 * MOST_STEPS * rows)).from_address(address))


def _names(group: int) -> tuple[str, str]:
    """The names of a group's slots and block tables."""
    if not group:
        return "slots", "block_tables"
    return of_group("slots", group), of_group("block_tables", group)
