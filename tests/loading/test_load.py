"""The way from a name to a loaded model."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import mlxr
from mlxr_tests.storyteller import TINY


def test_a_header_is_opened_once_however_many_steps_of_a_load_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: Counter[str] = Counter()
    open_path = Path.open

    def counted(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == TINY:
            opened[Path(sys._getframe(1).f_code.co_filename).name] += 1
        return open_path(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", counted)
    with mlxr.load(TINY, host="cpu", threads=1, needs_text=True) as model:
        assert model.tokenizer is not None
    assert opened["gguf_header.py"] == 1
