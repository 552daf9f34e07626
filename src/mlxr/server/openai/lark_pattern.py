"""A Lark grammar without recursion as one regular expression, so that JSON's strings can be held to it."""

import json
import re

_LONGEST = 1 << 16
_LEXEME = re.compile(
    r"""(?P<space>[ \t\r\f]+|//[^\n]*|\#[^\n]*)|(?P<line>\n)|(?P<directive>%\w+[^\n]*)
    |(?P<string>"(?:\\.|[^"\\\n])*"i?)|(?P<regex>/(?!/)(?:\\.|[^/\\\n])+/[imslux]*)
    |(?P<name>[?!]{0,2}[A-Za-z_]\w*(?:\.-?\d+)?)|(?P<count>~[ \t]*\d+(?:[ \t]*\.\.[ \t]*\d+)?)
    |(?P<arrow>->[ \t]*\w+)|(?P<range>\.\.)|(?P<sign>[:|()\[\]?*+])""",
    re.VERBOSE,
)
_IMPORT = re.compile(r"%import[ \t]+common(?:\.(\w+)[ \t]*(?:->[ \t]*(\w+))?|[ \t]*\(([\w, \t]+)\))")
_INT, _LETTER = "[0-9]+", "[A-Za-z]"
_DECIMAL = rf"(?:{_INT}\.(?:{_INT})?|\.{_INT})"
_FLOAT = rf"(?:{_INT}[eE][+-]?{_INT}|{_DECIMAL}(?:[eE][+-]?{_INT})?)"
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9A-Fa-f]",
    "INT": _INT,
    "SIGNED_INT": f"[+-]?{_INT}",
    "DECIMAL": _DECIMAL,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?{_FLOAT}",
    "NUMBER": f"(?:{_FLOAT}|{_INT})",
    "SIGNED_NUMBER": f"[+-]?(?:{_FLOAT}|{_INT})",
    "ESCAPED_STRING": r'"(?:\\.|[^"\\\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": _LETTER,
    "WORD": f"{_LETTER}+",
    "CNAME": r"[A-Za-z_][A-Za-z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
}
"""Lark's own terminals."""
_SIGNS = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")


class _NoPatternError(Exception):
    """The grammar is not one that an expression can say."""


def lark_pattern(grammar: str) -> str | None:
    """An expression that matches what the rule `start` of a grammar does.

    Lark reads a text token by token; an expression that joins the tokens matches all that Lark reads, at times more.

    Args:
        grammar: in Lark.

    Returns:
        The expression, without anchors; None if rules are recursive, or have what no expression says.
    """
    try:
        return _Rules(grammar).pattern("start")
    except (_NoPatternError, RecursionError):
        return None


class _Rules:
    """The rules of one grammar, each as its lexemes."""

    def __init__(self, grammar: str) -> None:
        self._rules: dict[str, list[tuple[str, str]]] = {}
        self._known: dict[str, str] = {}
        self._open: set[str] = set()
        lexemes = _lexemes(grammar)
        for place, (kind, text) in enumerate(lexemes):
            if kind == "directive":
                self._import(text)
            elif kind == "name" and (place == 0 or lexemes[place - 1][0] in ("line", "directive")):
                if lexemes[place + 1 : place + 2] != [("sign", ":")]:
                    raise _NoPatternError
                self._rules[_bare(text)] = _body(lexemes, place + 2)

    def pattern(self, name: str) -> str:
        """The expression of a rule."""
        if name not in self._known:
            if name not in self._rules or name in self._open:
                raise _NoPatternError
            self._open.add(name)
            rest = list(reversed(self._rules[name]))
            found = self._choice(rest)
            if rest or len(found) > _LONGEST:
                raise _NoPatternError
            self._open.remove(name)
            self._known[name] = f"(?:{found})"
        return self._known[name]

    def _import(self, text: str) -> None:
        match = _IMPORT.fullmatch(text.partition("//")[0].strip())
        if match is None:
            raise _NoPatternError
        names = [match[1]] if match[1] else [name.strip() for name in match[3].split(",")]
        for name in names:
            if name not in _COMMON:
                raise _NoPatternError
            self._known[match[2] or name] = f"(?:{_COMMON[name]})"

    def _choice(self, rest: list[tuple[str, str]]) -> str:
        options = [self._sequence(rest)]
        length = len(options[0])
        while rest and rest[-1] == ("sign", "|"):
            rest.pop()
            options.append(self._sequence(rest))
            length += len(options[-1])
            if length > _LONGEST:
                raise _NoPatternError
        return "|".join(options)

    def _sequence(self, rest: list[tuple[str, str]]) -> str:
        parts: list[str] = []
        length = 0
        while rest and rest[-1] not in (("sign", "|"), ("sign", ")"), ("sign", "]")):
            kind, text = rest.pop()
            if kind == "arrow":
                continue
            part = self._part(kind, text, rest)
            while rest and (rest[-1][0] == "count" or rest[-1] in (("sign", "?"), ("sign", "*"), ("sign", "+"))):
                kind, text = rest.pop()
                part = f"(?:{part}{_repeated(text) if kind == 'count' else text})"
            parts.append(part)
            length += len(part)
            if length > _LONGEST:  # rules that have others twice double it each time
                raise _NoPatternError
        return "".join(parts)

    def _part(self, kind: str, text: str, rest: list[tuple[str, str]]) -> str:
        match kind, text:
            case "name", _:
                return self.pattern(text)
            case "string", _:
                if rest and rest[-1][0] == "range":
                    rest.pop()
                    ends = _text(text), _text(rest.pop()[1]) if rest else ""
                    if any(len(end) != 1 for end in ends):
                        raise _NoPatternError
                    return "[" + "-".join(_SIGNS.sub(r"\\\g<0>", end) for end in ends) + "]"
                escaped = _SIGNS.sub(r"\\\g<0>", _text(text)).replace("\n", r"\n")
                return f"(?i:{escaped})" if text.endswith("i") else f"(?:{escaped})"
            case "regex", _:
                body, _, flags = text[1:].rpartition("/")
                if set(flags) - set("is"):
                    raise _NoPatternError
                return f"(?{flags}:{body})".replace(r"\/", "/")
            case "sign", "(" | "[":
                inner = self._choice(rest)
                if not rest or rest.pop() != ("sign", ")" if text == "(" else "]"):
                    raise _NoPatternError
                return f"(?:{inner})" + ("?" if text == "[" else "")
        raise _NoPatternError


def _lexemes(grammar: str) -> list[tuple[str, str]]:
    found, position = [], 0
    while position < len(grammar):
        match = _LEXEME.match(grammar, position)
        if match is None:
            raise _NoPatternError
        position = match.end()
        if match.lastgroup not in (None, "space"):
            found.append((str(match.lastgroup), match[0]))
    return found


def _body(lexemes: list[tuple[str, str]], start: int) -> list[tuple[str, str]]:
    """A rule's lexemes: it goes on in lines that begin with `|`, or inside brackets."""
    body, depth = [], 0
    for place in range(start, len(lexemes)):
        kind, text = lexemes[place]
        if kind == "line":
            following = next((lexeme for lexeme in lexemes[place:] if lexeme[0] != "line"), None)
            if depth or following == ("sign", "|"):
                continue
            break
        depth += (text in ("(", "[")) - (text in (")", "]")) if kind == "sign" else 0
        body.append((kind, text))
    return body


def _bare(name: str) -> str:
    """A rule's name without its marks and its priority."""
    return name.lstrip("?!").partition(".")[0]


def _text(quoted: str) -> str:
    try:
        text = json.loads(re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", quoted.removesuffix("i")), strict=False)
    except ValueError as error:
        raise _NoPatternError from error
    return str(text)


def _repeated(count: str) -> str:
    least, _, most = count[1:].replace(" ", "").replace("\t", "").partition("..")
    return f"{{{least},{most or least}}}"
