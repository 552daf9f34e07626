"""Processes that render chat templates, kept from one test to the next: to start one takes a twelfth of a second."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from mlxr.runtime.sealed.limited_process import LimitedProcess
from mlxr.runtime.tokenizer import chat_template

_idle: list[LimitedProcess] = []


class _Kept(LimitedProcess):
    """One that waits for the next template when it is closed, unless its question has failed."""

    _is_asked = False

    def ask(self, question: Mapping[str, Any], wall_seconds: float) -> dict[str, Any]:
        """As each; an error closes it while it is asked."""
        self._is_asked = True
        answer = super().ask(question, wall_seconds)
        self._is_asked = False
        return answer

    def close(self) -> None:
        """Keeps it, if it can go on: nothing of a template stays in it."""
        if self._is_asked:
            super().close()
        else:
            _idle.append(self)


def _process() -> LimitedProcess:
    if _idle:
        return _idle.pop()
    return _Kept(chat_template._WORKER, memory_bytes=chat_template.MOST_BYTES, cpu_seconds=chat_template.CPU_SECONDS)


@contextmanager
def kept_processes() -> Iterator[None]:
    """Templates take kept processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat_template, "_new_process", _process)
        yield
