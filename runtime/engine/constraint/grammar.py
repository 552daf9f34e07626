"""From the options of a request to a grammar as llguidance reads it, which checks its syntax."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlxr.runtime.engine.constraint.gbnf import gbnf_to_lark, is_gbnf
from mlxr.runtime.engine.constraint.grammar_tokens import GrammarTokens
from mlxr.runtime.engine.constraint.schema_rewrite import rewrite_schema
from mlxr.runtime.engine.errors import ConstraintError
from mlxr.runtime.engine.sampling import Sampling

MOST_CHARACTERS = 1 << 20
_JSON_OPTIONS = {"whitespace_pattern": r" |\n{1,2}[ \t]{0,20}"}
"""White space is bounded, as in llama.cpp: small models fill whole answers with it."""
_OWN_KEY = "x-guidance"
_SIGN = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")
# The lexemes of Lark, as llguidance has them, in which `<` or a name is not what it is elsewhere.
_QUOTED = re.compile(
    r'"(?:\\(?:["\\/bfnrt]|u[a-fA-F0-9]{4}|x[a-fA-F0-9]{2})|[^"\\\x00-\x1F\x7F])*"|(?://|\#)[^\n]*|/(?:\\.|[^/\\])+/',
)
_SPECIAL = re.compile(r"<(?!\[\d+\]>)[^<>\s]+>")
_TOKEN_ID = re.compile(rf"({_QUOTED.pattern})|<\[(\d+)(-[\d,-]+)?\]>")
_FIRST_TRIAL_TOKEN, _NUM_TRIAL_TOKENS = 256, 4
_OPTION = re.compile(r"\b(temperature|max_tokens|stop)\s*=")


@dataclass(frozen=True)
class Grammar:
    """A grammar.

    Attributes:
        option: the option of `Sampling` that it comes from, for messages.
        text: the grammar as llguidance reads it.
        trial: the same for a vocabulary of bytes, which has other control tokens.
        left_out: what of a schema it does not enforce.
    """

    option: str
    text: str
    trial: str
    left_out: tuple[str, ...] = ()


def grammar_of(sampling: Sampling, tokens: GrammarTokens) -> Grammar | None:
    """The grammar that a request's answer must follow; None if it may be anything.

    Args:
        sampling: the request's options.
        tokens: the model's.

    Raises:
        ConstraintError: it is too long, or not JSON, or has a part that is not supported.
    """
    if sampling.json_schema is not None:
        text = f'{{"grammars":[{{"json_schema":{lark_schema(sampling.json_schema, strict=sampling.strict)}}}]}}'
        return Grammar("json_schema", text, text, tuple(unenforced(sampling.json_schema)))
    if sampling.regex is not None:
        text = _of_regex(_bounded("regex", sampling.regex))
        return Grammar("regex", text, text)
    if sampling.choice is not None:
        text = _of_regex(_bounded("choice", _any_of(sampling.choice)))
        return Grammar("choice", text, text)
    if sampling.grammar is not None:
        lark = _lark(_bounded("grammar", sampling.grammar), tokens)
        return Grammar("grammar", _of_lark(lark), _of_lark(_TOKEN_ID.sub(_trial_token, lark)))
    return None


def lark_schema(schema: Mapping[str, object] | str | bool, *, strict: bool = False) -> str:
    """A JSON schema as the text that follows `%json` in Lark, with our rules of white space.

    Args:
        schema: a dict, its text, or True for any JSON.
        strict: whether a schema with keywords that cannot be enforced is refused; else they are left out.

    Raises:
        ConstraintError: it is too long, or not JSON, or has a key of llguidance's own, or cannot be enforced.
    """
    parsed, left_out = _enforceable(schema)
    if left_out and strict:
        raise ConstraintError(
            f"json_schema has keywords that cannot be enforced: {'; '.join(left_out)}: leave them out, or do not "
            "set strict, and check the answer",
            "json_schema",
        )
    try:
        text = json.dumps({**parsed, _OWN_KEY: _JSON_OPTIONS}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"json_schema is not JSON: {_reason(error)}", "json_schema") from error
    return _bounded("json_schema", text)


def unenforced(schema: Mapping[str, object] | str | bool) -> list[str]:
    """What of a JSON schema is not enforced unless it must be strict: `uniqueItems (#/properties/tags)`.

    Args:
        schema: a dict, its text, or True for any JSON.

    Raises:
        ConstraintError: it is too long, or not JSON, or has a key of llguidance's own.
    """
    return _enforceable(schema)[1]


def _enforceable(schema: Mapping[str, object] | str | bool) -> tuple[dict[str, object], list[str]]:
    if isinstance(schema, str):
        try:
            parsed = json.loads(_bounded("json_schema", schema))
        except (ValueError, RecursionError) as error:
            raise ConstraintError(f"json_schema is not JSON: {_reason(error)}", "json_schema") from error
    else:
        parsed = schema
    if parsed is True:
        parsed = {}
    if not isinstance(parsed, Mapping):
        raise ConstraintError(
            f"json_schema is {str(parsed)[:60]}, expected a JSON object, or true for any JSON", "json_schema"
        )
    if _OWN_KEY in parsed:
        raise ConstraintError(
            f"json_schema has the key {_OWN_KEY}, which is not supported: leave it out", "json_schema"
        )
    try:
        return rewrite_schema(dict(parsed))
    except RecursionError as error:
        raise ConstraintError("json_schema is nested too deeply", "json_schema") from error


def _of_regex(pattern: str) -> str:
    from llguidance import LLMatcher  # noqa: PLC0415 (an optional back end)

    return LLMatcher.grammar_from_regex(pattern)


def _any_of(choices: Sequence[str]) -> str:
    """A regular expression that matches the choices, and nothing else."""
    return "|".join(_SIGN.sub(r"\\\g<0>", choice) for choice in choices)


def _lark(text: str, tokens: GrammarTokens) -> str:
    """A grammar of a request as Lark."""
    if is_gbnf(text):
        return gbnf_to_lark(text, tokens)
    code = _QUOTED.sub('""', text)
    if special := _SPECIAL.search(code):
        raise ConstraintError(
            f"grammar names the token {special[0]}: spell it in quotes if it is text, and write a control token as its "
            "id, <[128010]>",
            "grammar",
        )
    if option := _OPTION.search(code):
        raise ConstraintError(
            f"grammar has the option {option[1]}, which is not supported: use suffix or lazy, or an option of Sampling",
            "grammar",
        )
    return text


def _of_lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def _trial_token(match: re.Match[str]) -> str:
    """A lexeme of Lark, where control tokens are some that llguidance's vocabulary of bytes has."""
    if match[2] is None:
        return match[1]
    if match[3] is not None:
        return f"<[0-{_FIRST_TRIAL_TOKEN + _NUM_TRIAL_TOKENS - 1}]>"
    return f"<[{_FIRST_TRIAL_TOKEN + int(match[2]) % _NUM_TRIAL_TOKENS}]>"


def _bounded(option: str, text: str) -> str:
    if len(text) > MOST_CHARACTERS:
        raise ConstraintError(
            f"{option} has {len(text)} characters, and at most {MOST_CHARACTERS} are read: shorten it", option
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConstraintError(
            f"{option} has half of a surrogate pair, which is not a character: {error}", option
        ) from error
    return text


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
