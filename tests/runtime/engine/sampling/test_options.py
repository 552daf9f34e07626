"""The options of a request: what is taken, what is refused, and what the message says."""

import copy
import pickle

import numpy as np
import pytest

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.sampling import Sampling


@pytest.mark.parametrize(
    ("option", "outside", "wrong", "expected"),
    [
        ("temperature", [-0.1, 100.5, np.nan, np.inf], [True, "1"], "a number from 0 (greedy) to 100"),
        ("top_k", [-1, 2**31], [2.0, True, "3"], "a whole number, 0 (all tokens) or more"),
        ("top_p", [0, 0.0, -0.1, 1.01, np.nan], [None], "a number greater than 0 and at most 1 (all tokens)"),
        ("min_p", [-0.1, 1.01, np.nan], ["0"], "a number from 0 (all tokens) to 1"),
        ("seed", [-1, 2**64], [1.5, False, "7"], "a whole number from 0 to 2^64 - 1, or none"),
        ("typical_p", [0, -0.1, 1.01, np.nan], [None], "a number greater than 0 and at most 1 (all tokens)"),
        ("repetition_penalty", [0, 0.001, 101, np.inf], [None], "a number from 0.01 to 100; 1 is none"),
        ("frequency_penalty", [-2.1, 2.1, np.nan], ["1"], "a number from -2 to 2; 0 is none"),
        ("presence_penalty", [-2.1, 2.1, np.nan], ["1"], "a number from -2 to 2; 0 is none"),
        ("dry_multiplier", [-0.1, 101, np.nan], ["1"], "a number from 0 (off) to 100"),
        ("dry_base", [0.99, 101, np.nan], ["1"], "a number from 1 to 100"),
        ("dry_allowed_length", [0, -1], [2.0], "a whole number of at least 1"),
        ("dry_range", [-1], [2.0], "a whole number, 0 (all tokens) or more"),
        ("logprobs", [-1], [2.0, True], "a whole number, 0 or more, or none"),
        ("prompt_logprobs", [-1], [2.0, True], "a whole number, 0 or more, or none"),
        ("n", [0, -1], [1.0, True], "a whole number of at least 1"),
        ("max_tokens", [0, -1], [1.0, True], "a whole number of at least 1, or none"),
        ("min_tokens", [-1], [1.0, None], "a whole number, 0 or more"),
        ("include_stop", [], [0, None, "no"], "True or False"),
        ("ignore_eos", [], [1, None, "no"], "True or False"),
    ],
)
def test_options_outside_their_range_are_refused(
    option: str, outside: list[object], wrong: list[object], expected: str
) -> None:
    for error, values in ((RequestError, outside), (TypeError, wrong)):
        for value in values:
            with pytest.raises(error) as told:
                Sampling(**{option: value})
            assert str(told.value) == f"{option} is {value!r}, expected {expected}"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"stop": ["a", ""]}, RequestError, "stop has an empty text"),
        ({"stop": [3]}, TypeError, "stop has 3, of type int; expected text"),
        ({"stop": 3}, TypeError, "stop is 3, of type int; expected text, or a list of texts"),
        ({"stop_tokens": 3}, TypeError, "stop_tokens is 3, of type int; expected a list of token ids"),
        ({"stop_tokens": [-1]}, RequestError, "a token of stop_tokens is -1, expected a token id"),
        ({"stop_tokens": ["1"]}, TypeError, "a token of stop_tokens is '1', expected a token id"),
        ({"dry_breakers": [""]}, RequestError, "dry_breakers has an empty text"),
        ({"logit_bias": [1]}, TypeError, "expected a dict from token ids to numbers"),
        ({"logit_bias": {"1": 2}}, TypeError, "a key of logit_bias is '1', expected a token id"),
        ({"logit_bias": {-1: 2}}, RequestError, "a key of logit_bias is -1, expected a token id"),
        ({"logit_bias": {1: 101}}, RequestError, r"logit_bias\[1\] is 101, expected a number from -100 to 100"),
        ({"min_tokens": 129}, RequestError, "min_tokens is 129, more than max_tokens, which is 128"),
        ({"json_schema": 3}, TypeError, "json_schema is 3, of type int; expected a schema"),
        ({"json_schema": False}, RequestError, "json_schema is False, which no JSON matches"),
        ({"regex": 3}, TypeError, "regex is 3, of type int; expected text"),
        ({"choice": "yes"}, TypeError, "choice is 'yes', of type str; expected a list of texts"),
        ({"choice": []}, RequestError, "choice is empty"),
        ({"regex": "a", "choice": ["a"]}, RequestError, "regex and choice are given; an answer follows one of them"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Sampling(**options)


def test_options_at_their_limits_are_taken() -> None:
    Sampling(temperature=100, top_k=2**31 - 1, top_p=1, min_p=1, seed=0)
    Sampling(temperature=0, top_k=0, top_p=1e-300, min_p=0, seed=2**64 - 1)
    Sampling(repetition_penalty=0.01, frequency_penalty=-2, presence_penalty=2, max_tokens=None, min_tokens=1000)


def test_options_are_a_value() -> None:
    bias = {5: 1}
    options = Sampling(stop="END", logit_bias=bias, choice=["a", "b"])
    bias[6] = 2
    assert options.stop == ("END",) and options.choice == ("a", "b") and options.logit_bias == {5: 1.0}
    assert options == copy.deepcopy(options) == pickle.loads(pickle.dumps(options))
    assert hash(options) == hash(copy.copy(options))


def test_ids_outside_the_vocabulary_are_refused_when_it_is_known() -> None:
    options = Sampling(logit_bias={5: 1.0})
    options.check_vocabulary(6)
    with pytest.raises(RequestError, match="logit_bias has token id 5, outside the vocabulary of 5"):
        options.check_vocabulary(5)
