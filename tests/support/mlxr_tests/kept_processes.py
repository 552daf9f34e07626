"""Processes that render chat templates and try grammars, kept from one test to the next: each takes 0.1 s to start."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from mlxr.runtime.engine.constraint import constraint_compiler
from mlxr.runtime.sealed.limited_process import LimitedProcess
from mlxr.runtime.tokenizer import chat_template

_idle: dict[str, list[LimitedProcess]] = {}


class _Kept(LimitedProcess):
    """One that waits for the next template or grammar when it is closed, unless its question has failed."""

    _is_asked = False

    def __init__(self, script: str, *, memory_bytes: int, cpu_seconds: float) -> None:
        self._script = script
        super().__init__(script, memory_bytes=memory_bytes, cpu_seconds=cpu_seconds)

    def ask(self, question: Mapping[str, Any], wall_seconds: float) -> dict[str, Any]:
        """As each; an error closes it while it is asked."""
        self._is_asked = True
        answer = super().ask(question, wall_seconds)
        self._is_asked = False
        return answer

    def close(self) -> None:
        """Keeps it, if it can go on: nothing of a question stays in it."""
        if self._is_asked:
            super().close()
        else:
            _idle.setdefault(self._script, []).append(self)


def _process(script: Any, *, memory_bytes: int, cpu_seconds: float) -> LimitedProcess:
    idle = _idle.get(str(script))
    return idle.pop() if idle else _Kept(str(script), memory_bytes=memory_bytes, cpu_seconds=cpu_seconds)


@contextmanager
def kept_processes() -> Iterator[None]:
    """Templates and grammars take kept processes."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (chat_template, constraint_compiler):
            patch.setattr(module, "LimitedProcess", _process)
        yield
