"""Source in colour: of Metal for a terminal, of any target for a page."""

import pygments
from pygments.filters import NameHighlightFilter
from pygments.formatters import HtmlFormatter, TerminalFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Keyword, Name

_SPACES = ("device", "threadgroup", "thread", "constant", "kernel")
_SCALARS = ("float", "half", "bfloat", "int", "uint", "short", "ushort")
_TYPES = (
    *(f"{scalar}{lanes}" for scalar in _SCALARS for lanes in ("", "2", "3", "4")),
    *("float16_t", "bfloat16_t", "int32_t", "uint32_t"),
)
_FUNCTIONS = (
    *("simd_sum", "simd_max", "simd_min", "simd_shuffle", "simd_shuffle_xor", "simd_shuffle_down"),
    *("simd_broadcast", "simd_broadcast_first", "threadgroup_barrier", "simdgroup_barrier", "as_type"),
)


_LEXERS = {"metal": "cpp", "c": "c"}


def highlight(text: str) -> str:
    """Metal source with the sixteen colours that every terminal has, so that the user's theme decides how it looks."""
    return pygments.highlight(text, _lexer("metal"), TerminalFormatter(bg="dark"))


def highlight_html(text: str, language: str) -> str:
    """Source as HTML, `<div class="highlight"><pre>...`: a span with a class for each token, and no colours.

    Args:
        text: the source.
        language: `metal` or `c`.
    """
    return pygments.highlight(text, _lexer(language), HtmlFormatter(wrapcode=True))


def _lexer(language: str) -> Lexer:
    """The lexer of a language; that of Metal is the one for C++, with the names that Metal adds."""
    lexer = get_lexer_by_name(_LEXERS[language], stripnl=False, ensurenl=False)
    if language == "metal":
        for names, kind in ((_SPACES, Keyword), (_TYPES, Keyword.Type), (_FUNCTIONS, Name.Builtin)):
            lexer.add_filter(NameHighlightFilter(names=names, tokentype=kind))
    return lexer
