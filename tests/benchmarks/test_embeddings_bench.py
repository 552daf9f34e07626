"""The benchmark of embeddings: turns of all engines, of which the first does not count, and ratios within a turn."""

from collections.abc import Sequence

import embeddings
import pytest


def test_engines_take_turns() -> None:
    calls: list[str] = []

    def engine(name: str, passed: float, worked: float) -> embeddings.Embed:
        def embed(texts: Sequence[str]) -> tuple[float, float]:
            calls.append(name)
            return passed * len(calls), worked

        return embed

    engines = {"ours": engine("ours", 1, 2), "theirs": engine("theirs", 3, 5)}
    assert embeddings.measured(engines, ["a"], 2, of_cpu=False) == {"ours": [3, 5], "theirs": [12, 18]}
    assert calls == ["ours", "theirs"] * 3
    assert embeddings.measured(engines, ["a"], 1, of_cpu=True) == {"ours": [2], "theirs": [5]}
    assert embeddings.ratio([12, 18, 40], [3, 6, 5]) == 4


def test_texts_are_the_same_each_time() -> None:
    for least, most in embeddings.LENGTHS.values():
        texts = embeddings.made_texts(40, least, most)
        assert texts == embeddings.made_texts(40, least, most)
        assert {least <= len(text.split()) <= most for text in texts} == {True}


def test_a_file_is_needed_for_llama_cpp(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["embeddings.py", "folder", "--llama-server", "x"])
    with pytest.raises(SystemExit):
        embeddings.main()
    assert "--llama-server and --gguf go together" in capsys.readouterr().err
