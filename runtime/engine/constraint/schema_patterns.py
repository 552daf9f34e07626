"""Regular expressions of schemas without look-around, and what texts are not."""

import re
from collections.abc import Iterator, Sequence

_ANY = r"[\s\S]*"
_WORD = re.compile(r"(?:[A-Za-z0-9 _@#%&=:;,'\"<>!/~`-]|\\[^A-Za-z0-9])*")
_ONE_SIGN = re.compile(r"\[\^?(?:\\.|[^\]\\])+\]|\\[dDwWsS]|\\[^A-Za-z0-9]|[^\\\[\](){}.*+?^$|]")
_OPPOSITES = {r"\d": r"\D", r"\w": r"\W", r"\s": r"\S", r"\D": r"\d", r"\W": r"\w", r"\S": r"\s"}
_LOOKS = re.compile(r"\(\?<?[=!]")
_BACK = re.compile(r"(?<!\\)(?:\\\\)*(?:\\[1-9]|\\k<)")
_MOST_SIGNS = 2000


def without_looks(pattern: str) -> list[str] | None:
    """Expressions that all match where `pattern` does, without look-around; None if they cannot be written.

    Look-ahead is rewritten where it stands at the beginning of a whole text, as in rules of passwords, and if it is
    negative where its opposite is plain: words, one character, or a character anywhere.
    """
    if not _LOOKS.search(pattern):
        return None if _BACK.search(pattern) else [pattern]
    if not pattern.startswith("^") or len(pattern) > _MOST_SIGNS:
        return None
    rest, found = pattern[1:], []
    while look := re.match(r"\(\?[=!]", rest):
        end = _end_of_group(rest)
        if end is None:
            return None
        inner, rest = rest[3 : end - 1], rest[end:]
        if rest[:1] in ("*", "+", "?", "{"):
            return None
        if look[0] == "(?=":
            if not _has_choice(inner):
                inside = without_looks("^" + inner)
            else:
                inside = None if _LOOKS.search(inner) else [f"^(?:{inner})"]
            if inside is None:
                return None
            found += inside
        else:
            opposite = _never(inner)
            if opposite is None:
                return None
            found.append(opposite)
    if _LOOKS.search(rest) or _BACK.search(rest) or _has_choice(rest):
        return None
    return [*found, "^" + rest] if rest else found


def whole_pattern(pattern: object) -> str | None:
    """The expression of whole texts in a pattern `^(?:...)$`; None if it is another one, or has look-around."""
    if not isinstance(pattern, str) or not pattern.startswith("^(?:") or without_looks(pattern) != [pattern]:
        return None
    end = _end_of_group(pattern[1:])
    return pattern[1:-1] if end is not None and pattern[1 + end :] == "$" else None


def no_text_of(texts: Sequence[str]) -> str:
    """An expression of all texts but these."""
    return f"^(?:{_others(sorted(set(texts)), '', whole=True)})$"


def _never(inner: str) -> str | None:
    """An expression of the texts that do not begin as `inner` says."""
    inner = inner.removeprefix("^")
    options = _split(inner)
    if options is None:
        return None
    words = [option.removesuffix("$") for option in options]
    if all(_WORD.fullmatch(word) for word in words):
        texts = [re.sub(r"\\(.)", r"\1", word) for word in words]
        if all(option.endswith("$") for option in options):
            return no_text_of(texts)
        if not any(option.endswith("$") for option in options):
            return f"^(?:{_others(sorted(set(texts)), '', whole=False)})$"
        return None
    if len(options) == 1 and inner.endswith(("*$", "+$")) and _ONE_SIGN.fullmatch(sign := inner[:-2]):
        nothing = "?" if inner.endswith("+$") else ""
        return f"^(?:{sign}*{_opposite(sign)}{_ANY}){nothing}$"
    if len(options) == 1:
        anywhere = re.fullmatch(r"\.\*(.+?)(?:\.\*)?", inner, re.DOTALL)
        sign = anywhere[1] if anywhere else inner
        if _ONE_SIGN.fullmatch(sign):
            other = _opposite(sign)
            return f"^{other}*$" if anywhere else f"^(?:{other}{_ANY})?$"
    return None


def _opposite(sign: str) -> str:
    if sign in _OPPOSITES:
        return _OPPOSITES[sign]
    if sign.startswith("["):
        return "[" + sign[2:] if sign.startswith("[^") else "[^" + sign[1:]
    return f"[^{sign}]"


def _others(texts: Sequence[str], begun: str, *, whole: bool) -> str:
    """An expression of how a text goes on after `begun` so that it is none of these, or begins with none."""
    here = [text for text in texts if text.startswith(begun)]
    if begun in here and not whole:
        return r"[^\s\S]"
    signs = sorted({text[len(begun)] for text in here if len(text) > len(begun)})
    options = [f"{re.escape(sign)}(?:{_others(here, begun + sign, whole=whole)})" for sign in signs]
    if signs:
        options.append(f"[^{''.join(re.escape(sign) for sign in signs)}]{_ANY}")
    else:
        options.append(r"[\s\S]+" if begun in here else _ANY)
    nothing = [] if begun in here or not signs else [""]
    return "|".join([*options, *nothing])


def _split(inner: str) -> list[str] | None:
    """The alternatives of an expression; None if they are not plain."""
    group = re.fullmatch(r"\((?:\?:)?(.*)\)(\$?)", inner, re.DOTALL)
    if group and _end_of_group(inner) == len(inner) - len(group[2]):
        inside = _split(group[1])
        return None if inside is None else [option + group[2] for option in inside]
    parts, last = [], 0
    for sign, depth in _outside_classes(inner):
        if sign[0] == "|" and depth == 0:
            parts.append(inner[last : sign.start()])
            last = sign.end()
    return [*parts, inner[last:]]


def _has_choice(pattern: str) -> bool:
    """Whether an expression has alternatives outside brackets."""
    return any(sign[0] == "|" and depth == 0 for sign, depth in _outside_classes(pattern))


def _end_of_group(pattern: str) -> int | None:
    """Where the group ends that begins an expression."""
    return next((sign.end() for sign, depth in _outside_classes(pattern) if sign[0] in ("(", ")") and depth == 0), None)


def _outside_classes(pattern: str) -> Iterator[tuple[re.Match[str], int]]:
    """The signs of an expression that are not in a class, each with the groups that are open after it."""
    depth, in_class = 0, False
    for sign in re.finditer(r"\\.|.", pattern, re.DOTALL):
        if in_class:
            in_class = sign[0] != "]"
            continue
        in_class = sign[0] == "["
        depth += {"(": 1, ")": -1}.get(sign[0], 0)
        yield sign, depth
