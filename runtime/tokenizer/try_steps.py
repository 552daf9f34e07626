"""Tries what is unusual in a tokenizer before it is used: regular expressions above all, which may take for ever.

The library's engine for them goes back and tries again. It gives up after some millions of attempts at one place, which
takes half a second, in which no other thread runs. So steps that MLXR does not know are tried on short texts first, in
a process of its own whose time and memory are limited. Time that grows with the square of a text is not found here:
some published tokenizers need it.
"""

import functools
import string
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.sealed.limited_process import LimitedProcess, ProcessEndedError
from mlxr.runtime.tokenizer import tokenizer_worker
from mlxr.runtime.tokenizer.pre_tokenizers import PRE_TOKENIZERS

MOST_BYTES = 1 << 30
CPU_SECONDS = 4.0
_WALL_SECONDS = 60.0
_LENGTH = 2000
_MOST_STEPS, _MOST_CONTENT = 16, 16
_OTHER_KNOWN = frozenset({" {2,}", r"\s+", r"[\n\r\t]"})
_RUNS = ("a", "A", " ", "\n", "0", "!", "é", "中", "\u0301", "a ", "a1", " \n", "'s", "ab", "Ab", "a\u0301")


def try_steps(steps: Iterable[tuple[str, Any]], source: str) -> None:
    """Tries steps, unless they are as those of known tokenizers.

    Args:
        steps: normalizers, pre-tokenizers and decoders, each with the key under which tokenizer.json has it.
        source: the file, for messages.

    Raises:
        TokenizerError: they take too long, or too much memory, or end the process.
    """
    unusual = [(key, part) for key, part in steps if isinstance(part, dict) and not _is_usual(part)]
    if not unusual:
        return
    process = None
    try:
        process = LimitedProcess(tokenizer_worker.__file__, memory_bytes=MOST_BYTES, cpu_seconds=CPU_SECONDS)
        for key, part in unusual:
            answer = process.ask({"steps": {key: part}, "texts": _texts(part)}, _WALL_SECONDS)
            if "retry-limit" in answer["error"]:  # other errors come again, in the words of what then loads it
                raise _refused(source, key, "the library gives up on a regular expression")
    except ProcessEndedError as error:
        raise _refused(source, "steps", f"it {error}") from error
    finally:
        if process is not None:
            process.close()


def _refused(source: str, key: str, why: str) -> TokenizerError:
    return TokenizerError(
        f"{source}: its {key} cannot be used: tried on texts of {_LENGTH} characters, {why}; use the tokenizer of the "
        "model's publisher"
    )


def _texts(part: Mapping[str, Any]) -> list[str]:
    """Runs of the same few characters, those of its own patterns among them, each with an end that is none of them."""
    own = {sign for pattern in _patterns(part) for sign in pattern if sign in string.ascii_letters + string.digits}
    runs = [*_RUNS, *sorted(own - {*_RUNS})]
    return [(run * _LENGTH)[:_LENGTH] + end for run in runs for end in ("", "\x02")]


def _is_usual(part: Mapping[str, Any]) -> bool:
    steps = list(_parts(part))
    contents = (str(step.get(key, "")) for step in steps for key in ("content", "prepend"))
    usual = all(pattern in _known_patterns() for pattern in _patterns(part))
    return usual and len(steps) <= _MOST_STEPS and all(len(content) <= _MOST_CONTENT for content in contents)


@functools.cache
def _known_patterns() -> frozenset[str]:
    return _OTHER_KNOWN.union(*(kind.patterns for kind in PRE_TOKENIZERS.values()))


def _patterns(part: Mapping[str, Any]) -> Iterator[str]:
    for step in _parts(part):
        pattern = step.get("pattern")
        if isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
            yield pattern["Regex"]


def _parts(value: Any) -> Iterator[Mapping[str, Any]]:
    """All objects in a part, itself among them."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _parts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _parts(inner)
