"""Metal source in colour."""

import pygments
from pygments.filters import NameHighlightFilter
from pygments.formatters import TerminalFormatter
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


def highlight(text: str) -> str:
    """Metal source with the sixteen colours that every terminal has, so that the user's theme decides how it looks.

    The lexer is that for C++, with the names that Metal adds.
    """
    lexer = get_lexer_by_name("cpp", stripnl=False, ensurenl=False)
    for names, kind in ((_SPACES, Keyword), (_TYPES, Keyword.Type), (_FUNCTIONS, Name.Builtin)):
        lexer.add_filter(NameHighlightFilter(names=names, tokentype=kind))
    return pygments.highlight(text, lexer, TerminalFormatter(bg="dark"))
