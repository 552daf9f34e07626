"""What the engine's loop asks: which tokens to try beside the next one of each text.

A draft is a guess of a text's next tokens. The step computes them all at once and samples after each; they are accepted
as far as they are what was sampled. So the answers are those without drafts: each token is sampled from logits that
depend on accepted tokens alone, with the random number of its position.

Guesses come from the text itself (`PromptLookup`), from a smaller model (`DraftModel`) or from the model's own head
(`OwnHead`). What becomes of them is seen in the text as it grows. Lookups cost next to nothing, so guesses are made and
compared while none is tried, and trying begins when they turn out right. A draft model and a head rest instead, longer
each time, when their guesses are not worth their time; meanwhile steps are launched ahead as if nobody guessed.

Whether they are worth it again is tried with one guess. What trials take, with all that the guesser reads for them, is
measured and comes out of an allowance: a share of the time of all steps, and what accepted tokens have saved. So a
guesser that is never right costs that share, and the first trial of all.
"""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mlxr.compiler.artifact import MOST_UNDONE
from mlxr.runtime.engine.request import Request
from mlxr.runtime.engine.speculation.acceptance import Acceptance
from mlxr.runtime.engine.speculation.prompt_lookup import PromptLookup
from mlxr.runtime.engine.speculation.step_costs import StepCosts
from mlxr.runtime.engine.speculation.text import Text

MOST_DRAFTED = MOST_UNDONE
"""Most draft tokens of a text in a step: with the token before them they fill a matrix tile of 16 rows."""
_LEAST_GAIN = 0.03
"""Drafts that promise less, of the speed without them, are not worth their risk."""
_GOOD = 0.5
"""Guesses that come true more often are given up for their time alone."""
_FIRST_REST, _LONGEST_REST = 64, 1024
"""Tokens of a text for which a draft model rests."""
_SHARE = 0.005
"""Of the time of steps, what trials may take."""
_MOST_ALLOWED = 32
"""Steps whose time is saved for trials at most, so that many at once do not hold up a text."""


class Guesser(Protocol):
    """A draft model or a head.

    Attributes:
        hope: the chance that a guess comes true, as long as none has been tried.
    """

    hope: float

    @property
    def launches(self) -> Mapping[str, int]:
        """How often each kernel was launched."""

    def propose(self, texts: Sequence[Text]) -> list[list[int]]:
        """Guesses up to `text.most` tokens of each text."""

    def seconds(self, guesses: int) -> float:
        """What so many guesses of each text take, as far as that has been measured."""

    def reading(self, text: Text) -> float:
        """What it takes to read what is new of a text, as far as that has been measured."""

    def measure_anew(self) -> None:
        """Forgets how long guesses took: it may have been disturbed."""

    def end(self, key: Hashable) -> None:
        """Forgets a text."""


@dataclass
class _State:
    """What is known of a text. `seen` tokens of the guess, made when the text had `length`, have been compared.

    It is on trial while nothing but hope says that guesses come true.
    """

    lookup: PromptLookup = field(default_factory=PromptLookup)
    acceptance: Acceptance = field(default_factory=Acceptance)
    guess: Sequence[int] = ()
    length: int = 0
    seen: int = 0
    pause: int = _FIRST_REST
    rests_until: int = 0
    on_trial: bool = False

    def compare(self, tokens: Sequence[int], usual: Acceptance) -> int:
        """Compares the guess with what has come since; `usual` observes it, too. Returns how much of it was right."""
        before = self.seen
        while self.seen < len(self.guess) and (at := self.length + self.seen) < len(tokens):
            is_right = tokens[at] == self.guess[self.seen]
            self.acceptance.observe(self.seen, is_right)
            usual.observe(self.seen, is_right)
            if not is_right:
                self.guess = ()
                break
            self.seen += 1
            self.on_trial = False
        return self.seen - before

    def replace(self, guess: Sequence[int], length: int) -> None:
        """Takes a new guess, of what follows `length` tokens."""
        self.guess, self.length, self.seen = guess, length, 0

    def rest(self, length: int, hope: float) -> None:
        """Rests from `length` tokens on: twice as long as before, unless the work in between was longer than that."""
        worked = length - self.rests_until
        self.pause = _FIRST_REST if worked > self.pause else min(2 * self.pause, _LONGEST_REST)
        self.rests_until = length + self.pause
        self.acceptance = Acceptance(hope)
        self.on_trial = True


class Speculator:
    """Proposes drafts. Only the thread that runs the engine's steps may use it.

    Attributes:
        costs: how long steps take.
    """

    def __init__(self, guesser: Guesser | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        """Starts without texts.

        Args:
            guesser: makes the guesses; None: prompt lookup does.
            clock: of the guesser's host.
        """
        self._model, self._clock = guesser, clock
        self._states: dict[Hashable, _State] = {}
        self._usual = Acceptance(0.5 if guesser is None else guesser.hope)
        self.costs = StepCosts()
        self._allowed = 0.0  # seconds
        self._saved = 0.0  # seconds, by an accepted token
        self._is_trying = False

    @property
    def launches(self) -> Mapping[str, int]:
        """How often each kernel of the guesser was launched."""
        return {} if self._model is None else self._model.launches

    def measured(self, tokens: int, drafted: int, seconds: float, steps: int = 1) -> None:
        """Takes the time of each of some steps with so many tokens, and draft tokens besides."""
        self.costs.measured(tokens + drafted, seconds)
        if drafted and self._is_trying:
            plain = self.costs.seconds(tokens, tokens)
            self._allowed -= seconds - plain[0] if plain else 0.0
        elif not drafted:
            self._allowed = min(self._allowed + _SHARE * seconds * steps, _MOST_ALLOWED * seconds)

    def draft(self, requests: Sequence[Request], tokens: int, room: int) -> None:
        """Sets `Request.draft.drafted` of requests that speculate, and until when they rest.

        Args:
            requests: those whose next token is in the next step.
            tokens: that the step has anyway, these requests' and others'.
            room: how many more it may have.

        Raises:
            HostError: a step of the draft model failed.
        """
        # After the last draft token comes one more, that of the step itself.
        asked = [(request, request.answer.tokens) for request in requests]
        texts = [
            Text(request, tokens, request.max_length - len(tokens) - 1, request.run.seq_id) for request, tokens in asked
        ]
        for request, draft in zip(requests, self.propose(texts, tokens, room), strict=True):
            request.draft.drafted = draft
            if (state := self._states.get(request)) is not None:
                request.draft.rests_until = state.rests_until

    def propose(self, texts: Sequence[Text], tokens: int, room: int) -> list[list[int]]:
        """A draft for each text, which may be empty.

        Args:
            texts: those that can have a draft in the next step, and whose next token is in that step.
            tokens: that the step has anyway, these texts' and others'.
            room: how many more it may have.

        Raises:
            HostError: a step of the draft model failed.
        """
        states = []
        for text in texts:
            state = self._states.get(text.key) or self._begin(text.key)
            if state.guess:
                self._allowed += self._saved * state.compare(text.tokens, self._usual)
            states.append(state)
        if self._model is None:
            return self._look_up(texts, states, tokens, room)
        return self._ask(self._model, texts, states, tokens, room)

    def end(self, key: Hashable) -> None:
        """Forgets a text."""
        self._states.pop(key, None)
        if self._model is not None:
            self._model.end(key)

    def _begin(self, key: Hashable) -> _State:
        """A new text; guesses of a model are thought to come true as often as they did in others."""
        state = _State() if self._model is None else _State(acceptance=self._usual.copy())
        state.on_trial = not self._usual.is_tried or self._usual.chances(1)[0] < _GOOD
        self._states[key] = state
        return state

    def _look_up(self, texts: Sequence[Text], states: Sequence[_State], tokens: int, room: int) -> list[list[int]]:
        guesses = [s.lookup.propose(t.tokens, MOST_DRAFTED) for t, s in zip(texts, states, strict=True)]
        if not any(guesses):
            return guesses
        chances = [
            state.acceptance.chances(min(len(guess), text.most))
            for text, state, guess in zip(texts, states, guesses, strict=True)
        ]
        lengths, _ = self._lengths(chances, tokens, room, _for_nothing)
        for text, state, guess, length in zip(texts, states, guesses, lengths, strict=True):
            if length or state.seen >= len(state.guess):  # else the guess before is still being compared
                state.replace(guess, len(text.tokens))
        return [guess[:length] for guess, length in zip(guesses, lengths, strict=True)]

    def _ask(
        self, model: Guesser, texts: Sequence[Text], states: Sequence[_State], tokens: int, room: int
    ) -> list[list[int]]:
        limits = [
            min(text.most, MOST_DRAFTED) if self._is_awake(model, text, state, tokens) else 0
            for text, state in zip(texts, states, strict=True)
        ]
        chances = [state.acceptance.chances(most) for state, most in zip(states, limits, strict=True)]
        lengths, taken = self._lengths(chances, tokens, room, model.seconds)
        asked = [min(length, 1) if s.on_trial else length for length, s in zip(lengths, states, strict=True)]
        self._is_trying = any(length and state.on_trial for length, state in zip(lengths, states, strict=True))
        begun = self._clock()
        drafts = model.propose([text._replace(most=length) for text, length in zip(texts, asked, strict=True)])
        self._allowed -= self._clock() - begun if self._is_trying else taken
        could_draft = room > 0 and self.costs.is_known(tokens)
        for text, state, chance, length, draft in zip(texts, states, chances, lengths, drafts, strict=True):
            state.replace(draft, len(text.tokens))
            if could_draft and chance and not length:
                state.rest(len(text.tokens), model.hope)
                if not any(lengths) and self._usual.chances(1)[0] > _GOOD:
                    model.measure_anew()
        return drafts

    def _is_awake(self, model: Guesser, text: Text, state: _State, tokens: int) -> bool:
        """Whether a text's guesses are tried; if they are not worth a trial yet, it rests on."""
        if len(text.tokens) < state.rests_until:
            return False
        if not (state.on_trial and self._usual.is_tried):
            return True
        if (seconds := self.costs.seconds(tokens, tokens + 1)) is None:
            return True
        lack = model.reading(text) + model.seconds(1) + seconds[1] - seconds[0] - self._allowed
        if lack <= 0:
            return True
        rest = min(max(_FIRST_REST, lack / (_SHARE * seconds[0])), _LONGEST_REST)
        state.rests_until = len(text.tokens) + int(rest)
        return False

    def _lengths(
        self, chances: Sequence[Sequence[float]], tokens: int, room: int, drafting: Callable[[int], float]
    ) -> tuple[list[int], float]:
        """How many tokens are tried of each text, and the seconds that it takes to make and compute them."""
        if all(not chance or chance[0] < _LEAST_GAIN for chance in chances):
            return [0] * len(chances), 0.0
        most = min(room, sum(len(chance) for chance in chances))
        seconds = self.costs.seconds(tokens, tokens + most) or [1.0]
        self._saved = seconds[0] / len(chances)
        lengths = draft_lengths(chances, seconds, drafting)
        return lengths, seconds[sum(lengths)] - seconds[0] + drafting(max(lengths))


def _for_nothing(guesses: int) -> float:
    """What lookups take: next to nothing."""
    return 0.0


def draft_lengths(
    chances: Sequence[Sequence[float]], seconds: Sequence[float], drafting: Callable[[int], float]
) -> list[int]:
    """The number of draft tokens for each text of a step.

    A step gives each text a token, and one more for each draft token that is accepted. So the likeliest guesses of all
    texts go first, and as many of them are taken as make the step's tokens per second greatest.

    Args:
        chances: for each text, the chances that its guesses are accepted, which fall.
        seconds: of the step with no guess, with one, two, ...; at least one number.
        drafting: the seconds that it takes to make so many guesses for each text.
    """
    lengths = [0] * len(chances)
    ranked = sorted((-chance, place, text) for text, row in enumerate(chances) for place, chance in enumerate(row))
    ranked = ranked[: len(seconds) - 1]
    tokens, longest, taken = float(len(chances)), 0, 0
    best = (1 + _LEAST_GAIN) * tokens / seconds[0]
    for count, (chance, place, _) in enumerate(ranked, 1):
        tokens -= chance
        longest = max(longest, place + 1)
        speed = tokens / (seconds[count] + drafting(longest))
        if speed > best:
            best, taken = speed, count
    for _, _, text in ranked[:taken]:
        lengths[text] += 1
    return lengths
