"""Where the time of a request goes: what it waited for, what steps did for it, and what they did for others.

Nobody measures each request in each step. A `Ledger` adds up the seconds of all steps by what they were for. A request
notes these sums when what it does changes (it is admitted, its prompt is read, it ends): what was added meanwhile is
divided by what it did. Steps in which answers decode and prompts are read are divided by the time of a step that only
decodes (`StepTimes`), or by tokens before one was timed.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from mlxr.runtime.engine.step_times import StepTimes

if TYPE_CHECKING:
    from mlxr.runtime.engine.request import Request
    from mlxr.runtime.engine.step import Step

Cause = Literal[
    "grammar",
    "queue",
    "room",
    "same_prompt",
    "tiers",
    "preempted",
    "prompt",
    "other_prompts",
    "decode",
    "other_answers",
    "mask",
    "sampling",
    "guesses",
    "engine",
]
CAUSES: dict[Cause, str] = {
    "grammar": "compiling the schema, expression or grammar that the answer must match",
    "queue": "waiting for a sequence: as many requests as a step may have were running",
    "room": "waiting for blocks of the arena",
    "same_prompt": "waiting for another request that was reading the same prompt",
    "tiers": "waiting for blocks of the prompt from host memory or disk",
    "preempted": "waiting again after others took its blocks, and reading again what it had read",
    "prompt": "reading the tokens of the prompt that the prefix cache did not have",
    "other_prompts": "steps that read other requests' prompts",
    "decode": "the steps of its own tokens, as long as they take alone",
    "other_answers": "how much longer steps took because others decoded in them, too",
    "mask": "waiting for the mask of the tokens that its schema, expression or grammar allows",
    "sampling": "choosing tokens of the logits",
    "guesses": "guessing tokens for speculation",
    "engine": "everything else in the engine",
}
"""What a request's time is divided by, each in words."""
_READING, _DECODING = "reading", "decoding"


@dataclass(slots=True)
class TimeSpent:
    """Where the time of a request went, from the moment when the engine took it to its end.

    Attributes:
        seconds: by cause; they add up to the whole time. `grammar` alone comes before that.
        missed_tokens: tokens of the prompt that the prefix cache did not have.
        differs_at: the first token of these, counted from 0, if the cache had another one in its place; None: it had
            nothing there, or nothing is missing.
        differing: this token and the one that was there.
    """

    seconds: dict[Cause, float] = field(default_factory=dict)
    missed_tokens: int = 0
    differs_at: int | None = None
    differing: tuple[int, int] | None = None

    @property
    def total(self) -> float:
        """Seconds in the engine."""
        return sum(self.seconds.values()) - self.seconds.get("grammar", 0.0)

    def add(self, cause: Cause, seconds: float) -> None:
        """Adds time."""
        if seconds > 0:
            self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds


class Sums(NamedTuple):
    """Seconds of all steps so far, by what they were for."""

    decode: float = 0.0
    others: float = 0.0
    prompt: float = 0.0
    mask: float = 0.0
    sampling: float = 0.0
    guesses: float = 0.0


_NOTHING = Sums()


@dataclass(eq=False, slots=True)
class Account:
    """What the ledger notes of a request.

    Attributes:
        spent: where its time went, up to the last note.
        doing: what it does: it waits for a cause, or `reading`, or `decoding`.
        noted: when that began, by the ledger's clock.
        sums: the ledger's then.
        own_prompt, own_mask: seconds of steps since then that were for its prompt and its masks.
        was_preempted: whether it reads again what it had read.
    """

    spent: TimeSpent = field(default_factory=TimeSpent)
    doing: str = ""
    noted: float = 0.0
    sums: Sums = _NOTHING
    own_prompt: float = 0.0
    own_mask: float = 0.0
    was_preempted: bool = False


class Ledger:
    """The seconds of an engine's steps, and the accounts of its requests. For the thread that runs the steps."""

    def __init__(self, clock: Callable[[], float], times: StepTimes) -> None:
        """Begins with nothing.

        Args:
            clock: seconds.
            times: how long steps take that decode alone.
        """
        self.clock, self._times = clock, times
        # Of all steps so far; not `Sums`, since a new one for each step would cost more than all else here.
        self._decode = self._others = self._prompt = self._masks = self._samplings = self._guesses = 0.0
        self._launches: deque[float] = deque()
        self._end = 0.0
        self._mask = self._sampling = 0.0  # since the last step ended

    def added(self, request: "Request") -> None:
        """A request waits for the first time."""
        self._note(request, "queue")

    def waits(self, request: "Request", cause: Cause) -> None:
        """A request that waits does so for this; one that was preempted waits for that."""
        doing = request.account.doing
        if doing not in (cause, "preempted"):
            self._settle(request)
            self._note(request, cause)

    def begins(self, request: "Request", *, reads: bool) -> None:
        """A request has got a sequence; `reads`: more of its tokens are to be computed than the one before the next."""
        self._settle(request)
        self._note(request, _READING if reads else _DECODING)

    def misses(self, request: "Request", tokens: int, differs: tuple[int, int] | None) -> None:
        """What the prefix cache lacks of a request's prompt when it is first admitted.

        Args:
            request: it.
            tokens: that it lacks.
            differs: the place of the first token that differs from what was there, and that token; None: nothing was.
        """
        spent = request.account.spent
        spent.missed_tokens = tokens
        if differs is not None:
            spent.differs_at = differs[0]
            spent.differing = request.answer.tokens[differs[0]], differs[1]

    def has_token(self, request: "Request") -> None:
        """A request has got a token: its prompt has been read."""
        if request.account.doing == _READING:
            self._settle(request)
            request.account.was_preempted = False
            self._note(request, _DECODING)

    def preempted(self, request: "Request") -> None:
        """A request has lost its sequence."""
        self._settle(request)
        request.account.was_preempted = True
        self._note(request, "preempted")

    def ended(self, request: "Request") -> None:
        """A request has ended."""
        if request.account.doing:
            self._settle(request)
            request.account.doing = ""

    def launched(self) -> None:
        """A step was launched."""
        self._launches.append(self.clock())

    def resumed(self) -> None:
        """What is left of a step, of which the first part has ended, ends by itself, and not with the next one."""
        self._launches.appendleft(self._end)

    def skipped(self) -> None:
        """Nobody waits for the first of the launched steps any more."""
        if self._launches:
            self._launches.popleft()

    def forgot(self) -> None:
        """The steps that were launched are given up."""
        self._launches.clear()

    def masked(self, request: "Request", seconds: float) -> None:
        """Masks of a request, or tokens that its constraint leaves no choice for, took so long."""
        request.account.own_mask += seconds
        self._mask += seconds

    def sampled(self, seconds: float) -> None:
        """To choose the tokens of a step took so long."""
        self._sampling += seconds

    def guessed(self, seconds: float) -> None:
        """To guess tokens took so long."""
        self._guesses += seconds

    def step(self, step: "Step") -> None:
        """A step has ended; the ones before have, too."""
        now = self.clock()
        begin = max(self._launches.popleft() if self._launches else now, self._end)
        self._end, mask, sampling = now, self._mask, self._sampling
        self._mask = self._sampling = 0.0
        self._masks += mask
        self._samplings += sampling
        left = decode = max(0.0, now - begin - mask - sampling)
        if step.num_prompt_tokens:
            decode = self._decode_share(step, left)
            self._prompt += left - decode
            of_token = (left - decode) / step.num_prompt_tokens
            for part in step.parts:
                if part.num_tokens > 1:
                    part.request.account.own_prompt += of_token * part.num_tokens
        if readers := _last_readers(step):
            of_reader = decode / (step.num_decoding * step.count)
            for request in readers:
                request.account.own_prompt += of_reader
            self._prompt += of_reader * len(readers)
            decode -= of_reader * len(readers)
        alone = self._times.decode_seconds(1) if step.num_decoding > 1 else None
        if alone is not None and alone * step.count < decode:
            self._others += decode - alone * step.count
            decode = alone * step.count
        self._decode += decode

    def _decode_share(self, step: "Step", seconds: float) -> float:
        """How much of the time of a step that reads prompts was for sequences that decode."""
        decoding, prompt = step.num_decoding, step.num_prompt_tokens
        if not decoding:
            return 0.0
        known = self._times.decode_seconds(decoding)
        return seconds * decoding / (decoding + prompt) if known is None else min(seconds, known)

    def _sums(self) -> Sums:
        return Sums(self._decode, self._others, self._prompt, self._masks, self._samplings, self._guesses)

    def _note(self, request: "Request", doing: str) -> None:
        account = request.account
        account.doing, account.noted, account.sums = doing, self.clock(), self._sums()
        account.own_prompt = account.own_mask = 0.0

    def _settle(self, request: "Request") -> None:
        """Divides the time since the last note."""
        account = request.account
        spent, wall = account.spent, max(0.0, self.clock() - account.noted)
        if account.doing in CAUSES:
            spent.add(account.doing, wall)
            return
        parts = self._parts(request)
        total = sum(parts.values())
        scale = wall / total if total > wall else 1.0  # the step that ran when it was noted counts whole
        for cause, seconds in parts.items():
            spent.add(cause, seconds * scale)
        spent.add("engine", wall - total * scale)

    def _parts(self, request: "Request") -> dict[Cause, float]:
        """What steps did since the last note of a request that runs, by what that was for it."""
        account = request.account
        done = Sums(*(now - then for now, then in zip(self._sums(), account.sums, strict=True)))
        others = done.others + max(0.0, done.mask - account.own_mask)
        speculates = request.draft.speculates
        reads = account.doing == _READING
        return {
            "decode": 0.0 if reads else done.decode,
            "other_answers": others + (done.decode if reads else 0.0) + (0.0 if speculates else done.guesses),
            "preempted" if account.was_preempted else "prompt": account.own_prompt,
            "other_prompts": max(0.0, done.prompt - account.own_prompt),
            "mask": account.own_mask,
            "sampling": done.sampling,
            "guesses": done.guesses if speculates else 0.0,
        }


def _last_readers(step: "Step") -> "list[Request]":
    """Whose part of a step is one token, the last one of a prompt."""
    if step.num_repeats or not step.num_decoding:
        return []
    return [part.request for part in step.parts if part.num_tokens == 1 and part.request.account.doing == _READING]
