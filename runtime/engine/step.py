"""A step: the tokens of several requests that are computed together.

It is *planned* by the scheduler, which says how many tokens of which requests; *launched*, when the host has been given
it; and *read*, when its tokens are known. On hosts that pipeline, one step is launched before the step before it is
read: it then takes the sampled tokens where they are, on the device, and nothing else that it needs depends on them:
positions, slots, context lengths, and the random numbers that choose tokens are known. There a step and the sampling of
its tokens (`Samples`) are lazy MLX graphs. Where they are short, a launch is of several decode steps, each of which
takes the tokens of the one before (`Step.count`).

No step changes another one, and steps change no request: what one means for its requests is written by the scheduler
(`Scheduler.has_launched`, `has_read`) and by the requests themselves (`Request.accept`).

To give up a launched step (its request has ended, or lost its blocks), it is enough to free or truncate the
sequence. The step still runs and writes its slot, whose block may have a new owner by then. That is harmless. One
thread launches all steps and copies, and each one binds the arena token that the one before it made. So the late write
happens before everything that the new owner launches, and an owner writes a slot before it reads it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.constraint.constraint import Mask
from mlxr.runtime.engine.launch_step import SaveEvicted, batch_to_launch, launch_step, more_steps
from mlxr.runtime.engine.request import Request, RunState
from mlxr.runtime.engine.samples import ChosenByHost, Samples, SamplesOfSteps, TokensOfSteps
from mlxr.runtime.engine.sampling import Row, Sampled
from mlxr.runtime.engine.sampling.device_choice import DeviceChoice
from mlxr.runtime.hosts.batch import MOST_TOPS, NO_ADAPTER, BatchRequest, DecodeRequests, Rows
from mlxr.runtime.hosts.host import Host, Logits
from mlxr.runtime.hosts.likeliest import Asked


class Part(NamedTuple):
    """A request's part of a step.

    Attributes:
        request: whose tokens they are.
        num_tokens: how many of its tokens, the first of those that are not computed; draft tokens come after them.
        samples: whether the last of them is the last that is known, so that the next token is sampled. Requests that
            pool their rows sample none.
        draft: draft tokens, which may or may not be what is sampled.
    """

    request: Request
    num_tokens: int
    samples: bool
    draft: tuple[int, ...] = ()

    @property
    def growth(self) -> tuple[int, int]:
        """The sequence, and by how many tokens it grows."""
        assert self.request.run.seq_id is not None, "only a request with a sequence takes part in a step"
        return self.request.run.seq_id, self.num_tokens + len(self.draft)

    @property
    def num_rows(self) -> int:
        """Rows of logits that it asks for."""
        if self.request.answer.prompt_rows:
            return self.num_tokens if self.request.needs_all_rows else 1
        return int(self.samples) + len(self.draft)


class Decode(NamedTuple):
    """Columns of a step in which each request has one known token and nothing special: most steps are that.

    Steps that follow each other and have the same requests share them. Nobody changes them.

    Attributes:
        requests: of the parts.
        runs: how far they are.
        seq_ids: their sequences.
        tokens: all that are known of each; these grow.
        rows: how the next token of each is chosen, in the first of the steps.
        adapters: what each uses, as a batch takes it; None: none uses any.
        is_plain: whether logits are taken as they are, and nothing is asked for but tokens.
        most_steps: after how many steps a request has all its tokens.
        speculating: those of the requests for which tokens may be guessed.
    """

    requests: list[Request]
    runs: list[RunState]
    seq_ids: list[int]
    tokens: list[list[int]]
    rows: list[Row]
    adapters: list[tuple[int, float]] | None
    is_plain: bool
    most_steps: int
    speculating: list[Request]


class Step:
    """One step, or several decode steps that are launched together.

    Attributes:
        state: `planned`, `launched`, or `read`. A launch that fails leaves it launched: its requests have failed.
        parts: what is computed.
        sequences: of the parts.
        count: how many steps it is; each takes the tokens of the one before.
        first: how many of them the host is given at once, while it prepares all: the others follow as long as nobody
            else comes. 0: all. It is certain when the step is launched.
        plain: how many steps it is if the host does not do that.
        goes_on: whether the host has launched it as more of the step before.
        ends: tokens of each part's request that are computed when it ends, without draft tokens.
        decode: its columns, if it is that simple; else None. Once it is launched on a host that pipelines, it has some
            only if these are plain.
        num_repeats: how many steps before this one had the same `decode`, each one token less of each request.
        keeps_no_logits: whether the step before it left its logits to the host, so that this one is likely to.
        num_decoding: parts of one token.
        num_prompt_tokens: tokens of the other parts.
        num_drafted: draft tokens.
        begin: when it was launched, in seconds of `time.perf_counter`.
        samples: the tokens that it samples, once it is launched: on the device where the host pipelines.
        chosen: the same where steps with `decode` were launched together; None: they were not.
        sampled_by_part: the same of each part, unless there is `decode`: the token after it, then one after each draft
            token.
    """

    __slots__ = (
        "_choice",
        "_prompt_logits",
        "_sampled",
        "_starts",
        "begin",
        "chosen",
        "count",
        "decode",
        "ends",
        "first",
        "goes_on",
        "keeps_no_logits",
        "num_decoding",
        "num_drafted",
        "num_prompt_tokens",
        "num_repeats",
        "parts",
        "plain",
        "sampled_by_part",
        "samples",
        "sequences",
        "state",
    )

    begin: float
    samples: Samples | SamplesOfSteps | ChosenByHost
    sampled_by_part: Sequence[Sequence[Sampled]]

    def __init__(self, parts: Sequence[Part], before: "Step | None" = None) -> None:
        """Plans one step.

        Args:
            parts: what is computed.
            before: the step before, if this one repeats it.
        """
        self.state: Literal["planned", "launched", "read"] = "planned"
        self.parts, self.count, self.first, self.plain, self.goes_on = parts, 1, 0, 1, False
        self.num_repeats, self.keeps_no_logits = 0, False
        self.chosen: TokensOfSteps | None = None
        self._sampled: Sequence[Sequence[Sampled]] | None = None
        self._prompt_logits: Logits | None = None
        self._choice: DeviceChoice | None = None  # as the columns' rows say, on the device
        self.sequences: Sequence[int | None]
        self.ends: list[int]
        self.decode: Decode | None
        if before is not None:
            assert before.decode is not None, "only a step that decodes is repeated"
            self.decode, self.num_repeats = before.decode, before.num_repeats + before.count
            self._choice, self.keeps_no_logits = before._choice, isinstance(before.samples, ChosenByHost)
            self.sequences, self._starts = before.sequences, before.ends
            self.ends = [end + 1 for end in before.ends]
        else:
            self.sequences = [request.run.seq_id for request, _, _, _ in parts]
            self.ends = [request.run.computed + num_tokens for request, num_tokens, _, _ in parts]
            self.decode = _decode(parts)
            self._starts = [] if self.decode is None else [end - 1 for end in self.ends]
        if self.decode is not None:
            self.num_decoding, self.num_prompt_tokens, self.num_drafted = len(parts), 0, 0
            return
        counts = [num_tokens for _, num_tokens, _, _ in parts]
        self.num_decoding = counts.count(1)
        self.num_prompt_tokens = sum(counts) - self.num_decoding
        self.num_drafted = sum([len(draft) for _, _, _, draft in parts])

    def repeated(self) -> "Step":
        """The step after this one, planned: the same requests, each with the token that it has got from this one."""
        return Step(self.parts, self)

    @property
    def most_more(self) -> int:
        """By how many further steps of the same requests it may be followed."""
        return 0 if self.decode is None else self.decode.most_steps - self.num_repeats - self.count

    def become(self, count: int, first: int = 0, plain: int = 0) -> None:
        """Makes so many steps of one that has `decode`, none of which was launched; see `first` and `plain`."""
        self.count, self.first, self.plain = count, first, plain or count
        self.ends = [start + count for start in self._starts]

    def cut(self) -> int:
        """Leaves out what the host has not been given of a step with `first`; how many steps that is."""
        left = self.prepared.left
        self.become(self.count - left, self.first)
        return left

    @property
    def prepared(self) -> ChosenByHost:
        """The samples of a step with `first`: of them the host is given more and more."""
        assert self.first and isinstance(self.samples, ChosenByHost), "others are given and read whole"
        return self.samples

    def part(self, before: int, early: int) -> "Step":
        """What is read and told together: the last steps of the launched step that it goes on, and its own.

        Args:
            before: how many of those; less than 0: so many of its first own are not.
            early: up to which of its own, the first `early` or all.
        """
        if not before and early == self.count and not self.first:
            return self
        part = Step.__new__(Step)
        part._become_part(self, before, early)
        return part

    def _become_part(self, whole: "Step", before: int, early: int) -> None:
        assert isinstance(whole.samples, ChosenByHost), "others are read whole"
        for name in _SHARED:
            setattr(self, name, getattr(whole, name))
        self.num_repeats, self.count = whole.num_repeats - before, before + early
        self._starts = [start - before for start in whole._starts]
        self.ends = [start + early for start in whole._starts]
        self.samples = whole.samples.part(before, early if early < whole.count else 0)
        self.chosen = self._sampled = None

    @property
    def starts(self) -> list[int]:
        """Of a step with `decode`, the tokens of each part's request that are computed when it begins."""
        return self._starts

    def launch(
        self,
        host: Host,
        pager: Pager,
        masks_of: Callable[[Request], Sequence[Mask | None]],
        before: "Step | None" = None,
        save: SaveEvicted | None = None,
    ) -> None:
        """Gives a planned step to the host; waits for nothing on hosts that pipeline.

        Args:
            host: where it runs.
            pager: of the host's arena.
            masks_of: the tokens that a request allows next, and after its draft tokens, as far as these are allowed.
            before: the step before, if it is launched and its tokens have not been read.
            save: see `launch_step`.

        Raises:
            ArenaFullError: as `launch_step`.
            HostError: as `launch_step`.
        """
        assert self.state == "planned", f"the step is {self.state}"
        self.state, self.begin = "launched", time.perf_counter()
        if host.pipelines and (self.decode is None or not self.decode.is_plain or host.gathers_tops):
            self.decode = None
        if self.decode is not None:
            self._launch_decode(host, pager, self.decode, before, save)
            return
        requests = _batch_requests(self.parts)
        on_device = None
        if before is not None:
            on_device = _tokens_on_device(before, self.parts, [request.tokens for request in requests])
        tops = self.tops() if host.gathers_tops else 0
        logits = launch_step(host, pager, requests, on_device, save, tops, _adapters([p.request for p in self.parts]))
        if any(part.request.answer.prompt_rows for part in self.parts):
            self._prompt_logits = logits
        if host.pipelines and any(part.samples and part.request.answer.constraint for part in self.parts):
            assert isinstance(logits, mx.array), "a host that pipelines gives lazy logits"
            host.start(logits, host.arena.token)  # it computes while masks are made
        self.samples = Samples(host, logits, *self._rows(masks_of))

    def _launch_decode(
        self, host: Host, pager: Pager, decode: Decode, before: "Step | None", save: SaveEvicted | None
    ) -> None:
        """`launch` of a step with `decode`."""
        follows = before is not None and before.decode is decode
        if before is not None and follows and isinstance(before.samples, ChosenByHost):
            for count, first in dict.fromkeys([(self.count, self.first), (self.plain, 0)]):
                self.become(count, first, self.plain)
                more = more_steps(host, pager, decode.seq_ids, self._starts, count, save, first, self._asked(decode))
                if (samples := before.samples.go_on(more)) is not None:
                    self.samples, self.goes_on = samples, True
                    return
        self.become(self.plain)
        ids = [
            tokens[start] if start < len(tokens) else 0  # it is on the device
            for tokens, start in zip(decode.tokens, self._starts, strict=True)
        ]
        on_device = None
        if before is not None and follows:
            on_device = before.samples.tokens
        elif before is not None:
            on_device = _tokens_on_device(before, self.parts, [[token] for token in ids])
        requests = DecodeRequests(decode.seq_ids, ids, self._starts)
        tops = self.tops() if host.gathers_tops else 0
        batch = batch_to_launch(host, pager, requests, on_device, save, tops, decode.adapters, self.count)
        rows = decode.rows
        if not host.pipelines:
            self.samples = Samples(host, host.step(batch), range(len(rows)), rows, self.num_repeats)
            return
        if self._choice is None:
            self._choice = DeviceChoice([row.sampler for row in rows], host.send)
        if self._choice.is_by_host and (chosen := host.likeliest_of_steps(batch, self._asked(decode))) is not None:
            self.samples = ChosenByHost(host, chosen)
            return
        uniforms = self._choice.uniforms([row.position + self.num_repeats for row in rows], self.count)
        self.samples = SamplesOfSteps(host, host.decode(batch), batch.tokens, self._choice, uniforms)

    def _asked(self, decode: Decode) -> Asked | None:
        """How its rows draw their tokens; None: all take the likeliest."""
        assert self._choice is not None, "a step before it has made it"
        if self._choice.is_greedy:
            return None
        return self._choice.asked([row.position + self.num_repeats for row in decode.rows], self.count)

    def read(self) -> None:
        """Waits for a launched step and its tokens.

        Raises:
            HostError: the step failed.
        """
        assert self.state == "launched", f"the step is {self.state}"
        if isinstance(self.samples, Samples):
            self._sampled = [self.samples.read()]
        else:
            self.chosen = self.samples.read()
        if self.decode is None:
            self.sampled_by_part = self._by_part(self.sampled[0])
        self.state = "read"

    @property
    def sampled(self) -> Sequence[Sequence[Sampled]]:
        """The tokens of a step that was read, step by step."""
        if self._sampled is None:
            assert self.chosen is not None, f"the step is {self.state}"
            self._sampled = self.chosen.sampled()
        return self._sampled

    def prompt_rows(self, host: Host) -> Iterator[tuple[Request, npt.NDArray[np.float32], int]]:
        """The rows of their prompts that requests ask for: the request, the rows, and the tokens up to the last one.

        A request that gave its sequence back since gets none: it begins again, and all of them are computed again.

        Raises:
            HostError: the step failed.
        """
        if self._prompt_logits is None:
            return
        rows, first = host.read(self._prompt_logits), 0
        for part, end, seq_id in zip(self.parts, self.ends, self.sequences, strict=True):
            request, count = part.request, part.num_rows
            if request.answer.prompt_rows and not request.answer.is_done and request.run.seq_id == seq_id:
                yield request, rows[first : first + count], end
            first += count

    def _by_part(self, sampled: Sequence[Sampled]) -> list[Sequence[Sampled]]:
        """See `sampled_by_part`."""
        if len(sampled) == len(self.parts) and not self.num_drafted:
            return [(one,) for one in sampled]
        found, first = list[Sequence[Sampled]](), 0
        for _, _, samples, draft in self.parts:
            last = first + samples + len(draft)
            found.append(sampled[first:last])
            first = last
        return found

    def tops(self) -> int:
        """How many of the greatest logits of each row are enough to sample its tokens; 0: all. See `Batch.tops`."""
        most = 0
        for request, _, samples, _ in self.parts:
            if request.answer.prompt_rows:
                return 0
            if samples:
                is_free = request.answer.constraint is None and not request.is_forced
                enough = request.sampler.tops if is_free else 0
                if not 0 < enough <= MOST_TOPS:
                    return 0
                most = max(most, enough)
        return most

    def _rows(self, masks_of: Callable[[Request], Sequence[Mask | None]]) -> tuple[Sequence[int], list[Row]]:
        """Which rows of logits are sampled, and how."""
        indices: list[int] = []
        rows: list[Row] = []
        index = 0
        for part, end in zip(self.parts, self.ends, strict=True):
            request, _, samples, draft = part
            index += part.num_rows if request.answer.prompt_rows or draft else samples
            if not samples:
                continue
            position = end - request.prompt_length
            if not draft and request.answer.constraint is None and not request.is_forced:  # nearly every row
                indices.append(index - 1)
                rows.append(Row(request.sampler, position))
                continue
            masks = masks_of(request)
            for i in range(1 + len(draft)):
                indices.append(index - 1 - len(draft) + i)
                rows.append(Row(request.sampler, position + i, masks[min(i, len(masks) - 1)]))
        return indices, rows


_SHARED = ("state", "begin", "parts", "sequences", "decode", "num_decoding", "num_prompt_tokens", "num_drafted")
"""What `Step.part` has of the step."""


def _decode(parts: Sequence[Part]) -> Decode | None:
    """The columns of a step that is simple enough for them; None of any other."""
    runs: list[RunState] = []
    seq_ids: list[int] = []
    tokens: list[list[int]] = []
    rows: list[Row] = []
    for request, num_tokens, samples, draft in parts:  # each statement here runs for each sequence of many steps
        answer, run = request.answer, request.run
        if num_tokens != 1 or not samples or draft or run.seq_id is None:
            return None
        if answer.constraint is not None or answer.prompt_rows or answer.thought is not None:
            return None
        runs.append(run)
        seq_ids.append(run.seq_id)
        tokens.append(answer.tokens)
        rows.append(Row(request.sampler, run.computed + 1 - request.prompt_length))
    if not parts:
        return None
    requests = [part.request for part in parts]
    adapters = _adapters(requests)
    is_plain = adapters is None and all(row.is_plain and not row.sampler.asks_logprobs for row in rows)
    most_steps = min([request.max_length - 1 - request.run.computed for request in requests])
    speculating = [request for request in requests if request.draft.speculates]
    return Decode(requests, runs, seq_ids, tokens, rows, adapters, is_plain, most_steps, speculating)


def _adapters(requests: Sequence[Request]) -> list[tuple[int, float]] | None:
    """The slots and scales of the adapters that requests use; None: none uses any."""
    if all(request.adapter is None for request in requests):
        return None
    return [NO_ADAPTER if request.adapter is None else request.adapter.place for request in requests]


def _batch_requests(parts: Sequence[Part]) -> list[BatchRequest]:
    """What a step asks the host for; ids that are on the device are 0. Constraints prepare their masks."""
    requests = []
    for request, num_tokens, samples, draft in parts:
        answer, run = request.answer, request.run
        assert run.seq_id is not None, "only a request with a sequence takes part in a step"
        start = run.computed
        tokens = answer.tokens[start : start + num_tokens]
        if len(tokens) < num_tokens:
            tokens.append(0)  # it is on the device
        wants_one = samples or answer.prompt_rows
        rows: Rows = "all" if draft or request.needs_all_rows else "last" if wants_one else "none"
        requests.append(BatchRequest(run.seq_id, [*tokens, *draft], start, rows, len(draft), request.second))
        if answer.constraint is not None and samples:
            answer.constraint.prepare(draft)
    return requests


def _tokens_on_device(before: Step, parts: Sequence[Part], ids: Sequence[Sequence[int]]) -> mx.array | None:
    """The token ids of a step: [tokens], int32, of which some are sampled by the step before. None if none are.

    They are put together of slices: MLX compiles what gathers them, for seconds, when a request first joins others.
    """
    sampled = [part.request for part in before.parts if part.samples]
    index = {request: i for i, request in enumerate(sampled)}
    known: list[int] = []
    places: list[int] = []  # in the sampled tokens with the known ones after them
    for part, tokens_of_part in zip(parts, ids, strict=True):
        is_sampled = bool(part.samples and part.request.run.in_flight)
        own = tokens_of_part[: len(tokens_of_part) - is_sampled]
        places += range(len(index) + len(known), len(index) + len(known) + len(own))
        known += own
        if is_sampled:
            places.append(index[part.request])
    if len(known) == len(places):
        return None
    tokens = before.samples.tokens
    if known:
        tokens = mx.concatenate([tokens, mx.array(np.array(known, np.int32))])
    if places == list(range(len(index) + len(known))):
        return tokens
    begins = [i for i, place in enumerate(places) if not i or place != places[i - 1] + 1]
    slices = [tokens[places[begin] : places[begin] + end - begin] for begin, end in pairwise([*begins, len(places)])]
    return mx.concatenate(slices)
