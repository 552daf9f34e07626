"""Makes constraints from the options of requests, with llguidance; one compiler for each model.

A grammar comes from a user who may be hostile. So it is tried in a process of its own first (`grammar_worker`), whose
time and memory are limited; llguidance's own limits then bound the work for each mask.
"""

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.constraint.constraint import Constraint, reason_of
from mlxr.runtime.engine.constraint.grammar import Grammar, grammar_of
from mlxr.runtime.engine.constraint.grammar_tokens import GrammarTokens
from mlxr.runtime.engine.constraint.vocabulary import Vocabulary
from mlxr.runtime.engine.errors import ConstraintError
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.sealed.limited_process import LimitedProcess, ProcessEndedError
from mlxr.runtime.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

LOG = logging.getLogger(__name__)
MOST_BYTES = 1 << 30
CPU_SECONDS = 2.0
_WALL_SECONDS = 20.0
_LIMITS = {"max_lexer_states": 100_000, "verbose_errors": False}
"""llguidance's limits where they are not its defaults. A state takes 1 to 2 kB; a text of at most 5,000 characters
makes up to 30,000 states, other schemas seldom 1,000."""
_MOST_GRAMMARS = 32
_MOST_TOLD = 1000
_MOST_WORKERS = 2


class ConstraintCompiler:
    """Makes constraints for one model. Threads may share it. What it needs is made for the first request that asks."""

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, eos_ids: Collection[int]) -> None:
        """Keeps what constraints depend on.

        Args:
            tokenizer: the model's; None if it has none.
            vocab_size: how many logits the model has.
            eos_ids: the ids that end an answer.
        """
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._eos_ids = sorted(token_id for token_id in eos_ids if token_id < vocab_size)
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._wrapper: Vocabulary | None = None
        self._grammars: OrderedDict[str, LLMatcher] = OrderedDict()
        self._told: set[tuple[str, ...]] = set()
        self._process: LimitedProcess | None = None
        self._executor = ThreadPoolExecutor(min(_MOST_WORKERS, os.cpu_count() or 1), "mlxr-masks")

    def compile(self, sampling: Sampling) -> Constraint | None:
        """The constraint of an answer; None if it may be anything.

        It takes about a millisecond; the first one of a model takes up to a second, and a grammar that is refused for
        its complexity some seconds.

        Raises:
            ConstraintError: the grammar cannot be used, and why.
            RequestError: the model has no tokenizer or no end-of-sequence token, or llguidance is not installed.
        """
        if not sampling.is_constrained:
            return None
        self._check_usable()
        assert self._tokenizer is not None, "checked"
        grammar = grammar_of(sampling, GrammarTokens(self._tokenizer, self._vocab_size, self._eos_ids))
        assert grammar is not None, "an option is given"
        with self._lock:
            matcher = self._matcher(grammar).deep_copy()
            self._tell(grammar)
        num_words = -(-self._vocab_size // 32)
        return Constraint(grammar.option, matcher, partial(self._renew, grammar), num_words, self._executor)

    def load(self) -> None:
        """Makes what the first constrained request would wait for: up to a second for a large vocabulary.

        Raises:
            RequestError: as `compile`.
        """
        self._check_usable()
        with self._lock:
            self._tokens()

    def close(self) -> None:
        """Ends its threads and its process. Nothing can be compiled afterwards."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._end_process()
            self._grammars.clear()
            self._vocabulary = None
            if self._wrapper is not None:  # Python cannot see that the two hold each other: they would stay for ever
                self._wrapper.greedy = None

    def _check_usable(self) -> None:
        if self._tokenizer is None:
            raise RequestError("a constraint on the answer needs a tokenizer, and the model has none")
        if not self._eos_ids:
            raise RequestError(
                "a constraint on the answer needs an end-of-sequence token, and the model's tokenizer names none"
            )
        try:
            import llguidance  # noqa: F401, PLC0415 (only constrained requests need it)
        except ImportError as error:
            raise RequestError(
                f"a constraint on the answer needs the package llguidance, which cannot be imported ({error}): "
                "pip install llguidance"
            ) from error

    def _matcher(self, grammar: Grammar) -> "LLMatcher":
        """The matcher that those of a grammar's answers are copies of. The lock must be held."""
        matcher = self._grammars.get(grammar.text)
        if matcher is None:
            self._try(grammar)
            matcher = self._grammars[grammar.text] = self._compile(grammar)
            if len(self._grammars) > _MOST_GRAMMARS:
                self._grammars.popitem(last=False)
        self._grammars.move_to_end(grammar.text)
        return matcher

    def _tell(self, grammar: Grammar) -> None:
        """Logs what of a schema is not enforced, once. The lock must be held."""
        if grammar.left_out and grammar.left_out not in self._told:
            if len(self._told) >= _MOST_TOLD:
                self._told.clear()
            self._told.add(grammar.left_out)
            LOG.warning("%s: not enforced: %s", grammar.option, "; ".join(grammar.left_out))

    def _renew(self, grammar: Grammar) -> "LLMatcher":
        """A matcher that shares nothing with others, in place of one that has failed, as its copies will."""
        with self._lock:
            self._grammars.pop(grammar.text, None)
            return self._compile(grammar)

    def _compile(self, grammar: Grammar) -> "LLMatcher":
        from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415 (only constrained requests need it)

        limits = LLParserLimits(**cast(dict[str, Any], _LIMITS))
        matcher = LLMatcher(self._tokens(), grammar.text, log_level=0, limits=limits)
        if matcher.is_error():
            raise _refused(grammar, matcher.get_error())
        return matcher

    def _tokens(self) -> "LLTokenizer":
        """The vocabulary, made once."""
        from llguidance import LLTokenizer  # noqa: PLC0415 (only constrained requests need it)

        if self._vocabulary is None:
            assert self._tokenizer is not None, "checked"
            self._wrapper = wrapper = Vocabulary(self._tokenizer, self._vocab_size, self._eos_ids)
            self._vocabulary = wrapper.greedy = LLTokenizer(cast(Any, wrapper), eos_token=self._eos_ids)
        return self._vocabulary

    def _try(self, grammar: Grammar) -> None:
        """Compiles a grammar where it can do no harm.

        Raises:
            ConstraintError: it cannot be used.
        """
        try:
            if self._process is None:
                script = Path(__file__).with_name("grammar_worker.py")
                self._process = LimitedProcess(script, memory_bytes=MOST_BYTES, cpu_seconds=CPU_SECONDS)
            answer = self._process.ask({"grammar": grammar.trial, "limits": _LIMITS}, _WALL_SECONDS)
        except BaseException as error:
            self._end_process()
            if isinstance(error, ProcessEndedError):
                raise ConstraintError(
                    f"{grammar.option} cannot be used: it {error}, when tried: make it smaller or simpler",
                    grammar.option,
                ) from error
            raise
        if answer["error"]:
            raise _refused(grammar, answer["error"])

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()


def _refused(grammar: Grammar, error: str) -> ConstraintError:
    return ConstraintError(f"{grammar.option} cannot be used: {reason_of(error)}", grammar.option)
