"""GBNF, the grammars of llama.cpp, as Lark grammars. llguidance converts them; a few gaps are closed here."""

import re

from mlxr.compiler.errors import RequestError

_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|\#[^\r\n]*|\.', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)
_ANY = "[\\x00-\U0010ffff]"  # in GBNF, a dot is also a line's end


def is_gbnf(text: str) -> bool:
    """Whether a grammar is GBNF, whose rules are written `name ::= ...`; else it is Lark."""
    return _RULE.search(text) is not None


def gbnf_to_lark(text: str) -> str:
    """The Lark grammar that a GBNF grammar is.

    Raises:
        RequestError: it is not GBNF.
    """
    from llguidance.gbnf_to_lark import gbnf_to_lark as convert  # noqa: PLC0415 (an optional back end)

    try:
        return convert(_TOKEN.sub(_plain, text))
    except RecursionError as error:
        raise RequestError("grammar: the GBNF is nested too deeply") from error
    except Exception as error:  # its errors are of no common class
        raise RequestError(f"grammar: cannot be read as GBNF: {error}") from error


def _plain(token: re.Match[str]) -> str:
    """A token of a grammar, written so that the converter understands it."""
    text = token[0]
    if text == ".":
        return _ANY
    return text if text.startswith("#") else _ESCAPE.sub(_character, text)


def _character(escape: re.Match[str]) -> str:
    """An escape as the converter knows it: it does not know all that name a character by its number."""
    digits = escape[1] or escape[2]
    if digits is None:
        return escape[0]
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise RequestError(f"grammar: cannot be read as GBNF: {escape[0]} is not a character")
    return f"\\x{code:02X}" if code < 0x80 else chr(code)
