"""The public options of one request: how its tokens are chosen, and where its answer ends.

`docs/SAMPLING.md` has a table of them, with the order in which they apply. An option is checked where it is given; what
depends on the model's vocabulary, when the request is added (`Sampling.check_vocabulary`).

Options that nobody gave are either those of `Sampling()`, which is greedy, or the model's own: `Sampling.of_model`.
"""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Self

from mlxr.compiler.errors import OptionError, RequestError
from mlxr.runtime.argument_types import described, expect, whole_number

CONSTRAINTS = ("json_schema", "regex", "choice", "grammar")
"""The options that constrain the text of the answer; a request has at most one."""
OF_MODELS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "repetition_range",
    "logit_bias",
    "stop",
)
"""The options of which models' own files may have defaults."""
_MOST = 2**31 - 1
_PLAIN = (float, int)
"""Types that are numbers for certain; to ask `numbers` takes longer, and each request has some 20 of them."""


@dataclass(frozen=True)
class ThoughtLimit:
    """How long a thought may be, and how it ends; see `mlxr.runtime.tokenizer.thinking_form`.

    Attributes:
        tokens: most tokens of all thoughts of an answer; 0: each is closed at once.
        opening: the text that begins one, white space included.
        closing: the text by which one is closed that has become too long.
        end_marker: the part of it by which the end of a thought is known.
        is_open: whether the prompt has begun one.
        reopens: whether another thought may begin after text of the answer; else only at its beginning.
        final_closing: the text by which thoughts after the first one are closed; empty: `closing` begins the answer
            itself, and no other thought comes.
    """

    tokens: int
    opening: str
    closing: str
    end_marker: str
    is_open: bool = False
    reopens: bool = False
    final_closing: str = ""

    def __post_init__(self) -> None:
        """Checks the number and the markers."""
        if whole_number("thought.tokens", self.tokens) < 0:
            raise RequestError(f"thought.tokens is {self.tokens}; expected 0 or more")
        if not self.opening.strip() or not self.end_marker or self.end_marker not in self.closing:
            raise RequestError("a limit on thoughts needs the text that begins them, and the one that ends them")


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, and where the answer ends.

    Raises:
        TypeError: an option of a wrong type.
        RequestError: an option outside its range, or two that contradict each other.
    """

    temperature: float = 0.0
    """0 takes the most probable token; 1 samples the model's own distribution. 0 to 100."""
    top_k: int = 0
    """Only the k most probable tokens; 0 for all."""
    top_p: float = 1.0
    """Only the most probable tokens that together have this probability; more than 0, at most 1 (all)."""
    min_p: float = 0.0
    """Only tokens with at least this share of the greatest probability; 0 (all) to 1."""
    seed: int | None = None
    """The same seed gives the same tokens; None for a new one for each request."""
    _: KW_ONLY
    typical_p: float = 1.0
    """Only the tokens whose surprise is nearest to the expected one, that together have this probability; 1 for all."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens of the prompt and the answer, and multiplies negative ones; 0.01 to 100."""
    repetition_range: int = 0
    """How many of the last tokens the repetition penalty is for; 0 for all of the prompt and the answer."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time that it is in the answer; -2 to 2."""
    presence_penalty: float = 0.0
    """Subtracted from a token's logit if it is in the answer; -2 to 2."""
    dry_multiplier: float = 0.0
    """DRY: the penalty of a token that would continue a repetition of `dry_allowed_length` tokens; 0 (off) to 100."""
    dry_base: float = 1.75
    """DRY: the factor of the penalty for each further repeated token; 1 to 100."""
    dry_allowed_length: int = 2
    """DRY: repetitions shorter than this are not penalised; at least 1."""
    dry_range: int = 0
    """DRY: how many of the last tokens are searched for repetitions; 0 for all, the prompt included."""
    dry_breakers: Sequence[str] = ("\n", ":", '"', "*")
    """DRY: texts that no repetition extends over."""
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Added to the logits of these token ids; -100 to 100 each."""
    logprobs: int | None = None
    """How many of the most probable tokens are told with their log probabilities; 0: the sampled one's; None: none."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""
    stop: Sequence[str] = ()
    """Texts that end the answer where they begin."""
    include_stop: bool = False
    """Whether the text that ended the answer belongs to it."""
    stop_tokens: Sequence[int] = ()
    """Token ids that end the answer, as end-of-sequence tokens do."""
    n: int = 1
    """How many answers to the prompt, each with random numbers of its own."""
    max_tokens: int | None = 128
    """Most tokens of the answer; None: until the context ends."""
    min_tokens: int = 0
    """No end-of-sequence token, stop token or stop text ends the answer before it has this many tokens."""
    ignore_eos: bool = False
    """Whether the answer continues after an end-of-sequence token."""
    json_schema: dict[str, object] | str | bool | None = field(default=None, hash=False)
    """The answer is JSON of this schema: a dict, or its text; True: any JSON."""
    strict: bool = False
    """Whether a schema with keywords that cannot be enforced is refused; else these are left out, and logged."""
    regex: str | None = None
    """The answer matches this regular expression as a whole."""
    choice: Sequence[str] | None = None
    """The answer is one of these texts."""
    grammar: str | None = None
    """The answer is a sentence of this grammar, written in Lark or GBNF."""
    thought: ThoughtLimit | None = None
    """Most tokens that the model thinks before it answers, and the texts around a thought; None: no limit."""
    left_open: frozenset[str] = frozenset()
    """Names of options whose values here do not count: the defaults of the model that answers do."""

    @classmethod
    def of_model(cls, **given: Any) -> Self:
        """Options of which those that are not given are the model's own defaults, if it may have some.

        Raises:
            TypeError: an option of a wrong type.
            RequestError: an option outside its range, or two that contradict each other.
        """
        return cls(**given, left_open=frozenset(OF_MODELS) - given.keys())

    def ending_also(self, tokens: Iterable[int]) -> "Sampling":
        """The same options, with further tokens that end the answer."""
        return replace(self, stop_tokens=(*self.stop_tokens, *tokens))

    @property
    def is_constrained(self) -> bool:
        """Whether the text of the answer is constrained."""
        return any(getattr(self, name) is not None for name in CONSTRAINTS)

    def __post_init__(self) -> None:
        """Checks every option."""
        self._check_filters()
        self._check_penalties()
        self._check_end()
        self._check_constraint()
        expect("thought", self.thought, (ThoughtLimit, type(None)), "a ThoughtLimit")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name), 0, _MOST, "a whole number, 0 or more, or none")

    def check_vocabulary(self, vocab_size: int) -> None:
        """Checks what depends on the model.

        Raises:
            RequestError: `logit_bias` or `stop_tokens` name an id outside the vocabulary.
        """
        for name, tokens in (("logit_bias", self.logit_bias), ("stop_tokens", self.stop_tokens)):
            for token in tokens:
                if token >= vocab_size:
                    raise RequestError(f"{name} has token id {token}, outside the vocabulary of {vocab_size}")

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0

    def _check_filters(self) -> None:
        _check_number("temperature", self.temperature, 0, 100, "a number from 0 (greedy) to 100")
        _check_whole("top_k", self.top_k, 0, _MOST, "a whole number, 0 (all tokens) or more")
        share = "a number greater than 0 and at most 1 (all tokens)"
        _check_number("top_p", self.top_p, math.ulp(0.0), 1, share)
        _check_number("min_p", self.min_p, 0, 1, "a number from 0 (all tokens) to 1")
        _check_number("typical_p", self.typical_p, math.ulp(0.0), 1, share)
        if self.seed is not None:
            _check_whole("seed", self.seed, 0, 2**64 - 1, "a whole number from 0 to 2^64 - 1, or none")

    def _check_penalties(self) -> None:
        _check_number("repetition_penalty", self.repetition_penalty, 0.01, 100, "a number from 0.01 to 100; 1 is none")
        for name in ("frequency_penalty", "presence_penalty"):
            _check_number(name, getattr(self, name), -2, 2, "a number from -2 to 2; 0 is none")
        _check_number("dry_multiplier", self.dry_multiplier, 0, 100, "a number from 0 (off) to 100")
        _check_number("dry_base", self.dry_base, 1, 100, "a number from 1 to 100")
        _check_whole("dry_allowed_length", self.dry_allowed_length, 1, _MOST, "a whole number of at least 1")
        _check_whole("dry_range", self.dry_range, 0, _MOST, "a whole number, 0 (all tokens) or more")
        object.__setattr__(self, "dry_breakers", _texts("dry_breakers", self.dry_breakers))
        if not isinstance(self.logit_bias, Mapping):
            raise TypeError(f"logit_bias is {described(self.logit_bias)}; expected a dict from token ids to numbers")
        for token, bias in self.logit_bias.items():
            _check_whole("a key of logit_bias", token, 0, _MOST, "a token id")
            _check_number(f"logit_bias[{token}]", bias, -100, 100, "a number from -100 to 100")
        object.__setattr__(self, "logit_bias", {int(token): float(bias) for token, bias in self.logit_bias.items()})

    def _check_end(self) -> None:
        object.__setattr__(self, "stop", _texts("stop", self.stop))
        if not isinstance(self.stop_tokens, Iterable) or isinstance(self.stop_tokens, str | bytes | Mapping):
            raise TypeError(f"stop_tokens is {described(self.stop_tokens)}; expected a list of token ids")
        object.__setattr__(self, "stop_tokens", tuple(self.stop_tokens))
        for token in self.stop_tokens:
            _check_whole("a token of stop_tokens", token, 0, _MOST, "a token id")
        _check_bool("include_stop", self.include_stop)
        _check_bool("ignore_eos", self.ignore_eos)
        _check_whole("n", self.n, 1, _MOST, "a whole number of at least 1")
        if self.max_tokens is not None:
            _check_whole("max_tokens", self.max_tokens, 1, _MOST, "a whole number of at least 1, or none")
        _check_whole("min_tokens", self.min_tokens, 0, _MOST, "a whole number, 0 or more")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}")

    def _check_constraint(self) -> None:
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        _check_bool("strict", self.strict)
        if len(given) > 1:
            raise RequestError(f"{' and '.join(given)} are given; an answer follows one of them: drop the others")
        if not isinstance(self.json_schema, dict | str | bool | None):
            expected = "a schema as a dict or as text, or True for any JSON"
            raise TypeError(f"json_schema is {described(self.json_schema)}; expected {expected}")
        if self.json_schema is False:
            raise RequestError("json_schema is False, which no JSON matches; expected a schema, or True for any JSON")
        for name in ("regex", "grammar"):
            text = getattr(self, name)
            if not isinstance(text, str | None):
                raise TypeError(f"{name} is {described(text)}; expected text")
        if self.choice is not None:
            if isinstance(self.choice, str):
                raise TypeError(f"choice is {described(self.choice)}; expected a list of texts")
            object.__setattr__(self, "choice", _texts("choice", self.choice))
            if not self.choice:
                raise RequestError("choice is empty; expected at least one text")


def sampling_for(sampling: Sampling | None, max_tokens: int | None, ignore_eos: bool) -> Sampling:
    """The options of an answer: those that are given, or the defaults, with what a call says besides them.

    Args:
        sampling: the options; None: the defaults.
        max_tokens: most tokens of the answer; None: what the options say.
        ignore_eos: whether an end-of-sequence token does not end it; False: what the options say.

    Raises:
        TypeError: an argument of a wrong type.
        RequestError: they contradict each other.
    """
    expect("sampling", sampling, (Sampling, type(None)), "a mlxr.Sampling")
    changes: dict[str, Any] = {}
    if max_tokens is not None:
        changes["max_tokens"] = whole_number("max_tokens", max_tokens)
    if ignore_eos:
        changes["ignore_eos"] = True
    known = _DEFAULTS if sampling is None else sampling
    if known.logit_bias:  # a dict, which may have been changed since it was checked
        return replace(known, **changes)
    made = object.__new__(type(known))
    vars(made).update(vars(known), logit_bias={}, **changes)
    made._check_end()  # all else was checked before, and would take longer than what is left of a short prompt's start
    return made


def _check_number(name: str, value: float, low: float, high: float, expected: str) -> None:
    if type(value) not in _PLAIN and (isinstance(value, bool) or not isinstance(value, numbers.Real)):
        raise TypeError(f"{name} is {value!r}, expected {expected}")
    if not low <= value <= high:
        raise OptionError(name, f"is {value!r}, expected {expected}")


def _check_whole(name: str, value: int, low: int, high: int, expected: str) -> None:
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, numbers.Integral)):
        raise TypeError(f"{name} is {value!r}, expected {expected}")
    if not low <= value <= high:
        raise OptionError(name, f"is {value!r}, expected {expected}")


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, expected True or False")


def _texts(name: str, value: object) -> tuple[str, ...]:
    """One text or several as a tuple; none may be empty."""
    if type(value) is tuple and not value:
        return value
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Mapping):
        raise TypeError(f"{name} is {described(value)}; expected text, or a list of texts")
    texts = tuple(texts)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{name} has {described(text)}; expected text")
        if not text:
            raise RequestError(f"{name} has an empty text; expected at least one character")
    return texts


_DEFAULTS = Sampling()
