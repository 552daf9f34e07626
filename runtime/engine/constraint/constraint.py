"""A constraint: what the tokens of one answer must follow, and how far the answer is.

Masks are made in a worker thread while the host computes a step: `prepare` starts that, and `mask` waits for it. A
constraint is used by one thread; the worker has it between the two calls, and every other call first waits for it.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from mlxr.runtime.engine.errors import ConstraintError

if TYPE_CHECKING:
    from llguidance import LLMatcher

Mask = npt.NDArray[np.int32]
"""The tokens that may come, a bit each, the lowest bit first: [ceil(vocab / 32)]."""
_T = TypeVar("_T")
_MOST_QUOTED = 600


class Constraint:
    """The constraint of one answer. Owns a matcher, which follows the answer's tokens.

    Matchers of the same grammar share what they have learnt of it, which has a limit. If others have filled that, the
    matcher is made anew: so an answer does not depend on other requests.
    """

    def __init__(
        self, option: str, matcher: "LLMatcher", renew: Callable[[], "LLMatcher"], num_words: int, executor: Executor
    ) -> None:
        """Starts at the beginning of an answer.

        Args:
            option: the option of `Sampling` that it comes from, for messages.
            matcher: of its grammar, before the first token.
            renew: makes another such matcher, which shares nothing.
            num_words: of a mask.
            executor: runs what `prepare` starts.
        """
        self._option, self._renew, self._num_words, self._executor = option, renew, num_words, executor
        self._matcher = matcher
        self._tokens: list[int] = []
        self._draft: list[int] = []
        self._pending: Future[list[Mask]] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the answer can only end: it follows the grammar, and no further text does."""
        if self._pending is not None:
            self._pending.exception()
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def prepare(self, draft: Sequence[int] = ()) -> None:
        """Starts making the next masks, unless that has been done since the last token, for the same draft.

        Args:
            draft: a guess of the next tokens.
        """
        if self._pending is None or list(draft) != self._draft:
            self._settle()
            self._draft = list(draft)
            self._pending = self._executor.submit(self._make_masks, self._draft)

    def mask(self) -> Mask:
        """Which tokens may come next; end-of-sequence tokens among them exactly where the answer may end. It waits.

        Raises:
            ConstraintError: the grammar has become too complex, or no token may come.
        """
        return self.masks()[0]

    def masks(self) -> list[Mask]:
        """Which tokens may come next, and after each token of the prepared draft, up to the first that may not come.

        Raises:
            ConstraintError: as `mask`.
        """
        if self._pending is None:
            self.prepare()
        assert self._pending is not None, "prepared"
        return self._pending.result()

    def accept(self, token: int) -> None:
        """Adds a token that a mask allows.

        Raises:
            ConstraintError: it is not allowed, or the grammar has become too complex.
        """
        self._settle()
        self._checked(lambda matcher: matcher.consume_token(token))
        self._tokens.append(token)

    def forced(self) -> list[int]:
        """The next tokens as far as there is no choice, often none; they count as accepted.

        They are the tokens that masks would allow, each alone. A text that only one token can begin is forced too, in
        the tokens that the tokenizer makes of it, which the model has seen; at its end, tokens that the tokenizer might
        join with what follows are left open. (Source: llguidance, docs/fast_forward.md.)

        Raises:
            ConstraintError: the grammar has become too complex.
        """
        self._settle()
        tokens = self._checked(lambda matcher: matcher.compute_ff_tokens())
        if tokens:
            self._checked(lambda matcher: matcher.consume_tokens(tokens))
            self._tokens += tokens
        return tokens

    def truncate(self, length: int) -> None:
        """Takes back the newest accepted tokens, until so many are left."""
        if self._pending is not None:
            self._pending.exception()
        count = len(self._tokens) - length
        assert 0 <= count <= len(self._tokens), f"{len(self._tokens)} tokens cannot be cut to {length}"
        if count:
            self._settle()
            self._take_back(count)

    def _settle(self) -> None:
        """Takes the matcher back from the worker. What the worker has made is of no use after this."""
        pending, self._pending = self._pending, None
        if pending is not None and not pending.cancel():
            pending.exception()

    def _make_masks(self, draft: list[int]) -> list[Mask]:
        masks, start = [self._make_mask()], len(self._tokens)
        for token in draft:
            if self._matcher.is_stopped() or not self._checked(lambda matcher: matcher.try_consume_tokens([token])):  # noqa: B023
                break
            self._tokens.append(token)
            masks.append(self._make_mask())
        if len(self._tokens) > start:
            self._take_back(len(self._tokens) - start)
        return masks

    def _take_back(self, count: int) -> None:
        self._checked(lambda matcher: matcher.rollback(count))
        del self._tokens[len(self._tokens) - count :]

    def _make_mask(self) -> Mask:
        words = np.empty(self._num_words, np.int32)
        self._checked(lambda matcher: matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes))
        return words

    def _checked(self, work: Callable[["LLMatcher"], _T]) -> _T:
        """What the matcher gives; it reports errors by its state, after which it is of no further use."""
        result = work(self._matcher)
        if self._matcher.is_error():
            self._matcher = self._renew()
            self._matcher.consume_tokens(self._tokens)
            result = work(self._matcher)
            if self._matcher.is_error():
                raise ConstraintError(f"{self._option}: {reason_of(self._matcher.get_error())}", self._option)
        return result


def reason_of(error: str) -> str:
    """The reason for an error of llguidance, in its own words."""
    reason = error.removesuffix("\n<non-verbose/>").strip()
    if reason == "NoExtensionBias":
        return "no text of the model's tokens follows it"
    return reason if len(reason) <= _MOST_QUOTED else f"{reason[:_MOST_QUOTED]} ..."
