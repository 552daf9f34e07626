"""The way from a name to a loaded model."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import mlxr
from mlxr.compiler.spec.change import Changes, changed
from mlxr.loading import load as load_module
from mlxr.loading.find_model import FoundModel
from mlxr_tests.specs import small_spec
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


def test_tiers_need_windows_that_keep_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[FoundModel] = []

    def stop(model: FoundModel, where: object) -> None:
        found.append(model)
        raise InterruptedError

    monkeypatch.setattr(load_module, "_compile_and_make", stop)
    for tiers in (mlxr.TierSizes(memory_bytes=1 << 20), mlxr.TierSizes()):
        with pytest.raises(InterruptedError):
            mlxr.load(TINY, host="cpu", tiers=tiers)
    assert [model.options.changes.keep_windows for model in found] == [True, False]
    windowed = small_spec(model__attention__sliding_window=8)
    assert changed(windowed, Changes(keep_windows=True)).cache.keep_windows
    assert changed(plain := small_spec(), Changes(keep_windows=True)) == plain
