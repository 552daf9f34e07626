"""Tries grammars, as the script of a `LimitedProcess`. It imports nothing of MLXR.

llguidance has limits of its own, but some short grammars keep it busy for ever, and long chains of rules overflow the
stack. What compiles here, with a small stack, certainly compiles in a thread of MLXR. The process opens no file and no
socket, where the system can see to it, should the library have a hole.

Question: `{"grammar", "limits"}`; answer: `{"error"}`, which is empty if all is well.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llguidance

IS_SEALED = True
_MOST_FORCED_BYTES = 16 << 10
_STACK_BYTES = 2 << 20
"""A quarter of what threads have on Linux, an eighth of what those of Python have on macOS."""


def answerer() -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The function that answers questions."""
    tokenizer = llguidance.LLTokenizer("byte")

    def attempt(question: Mapping[str, Any]) -> str:
        try:
            return _error_of(tokenizer, question["grammar"], question["limits"])
        except BaseException as error:  # the library's own panics are no Exceptions
            return f"{type(error).__name__}: {error}"

    threading.stack_size(_STACK_BYTES)
    thread = ThreadPoolExecutor(1)
    thread.submit(int).result()  # it starts: a sealed process cannot start one
    return lambda question: {"error": thread.submit(attempt, question).result()}


def _error_of(tokenizer: llguidance.LLTokenizer, grammar: str, limits: Mapping[str, Any]) -> str:
    """Why a grammar cannot be used. The first mask is made too, which finds grammars that no text matches."""
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=llguidance.LLParserLimits(**limits))
    if not matcher.is_error():
        forced = matcher.compute_ff_bytes()
        if len(forced) > _MOST_FORCED_BYTES:
            return f"all texts begin with the same {len(forced)} bytes, and at most {_MOST_FORCED_BYTES} are supported"
        matcher.compute_bitmask()
    return matcher.get_error()
