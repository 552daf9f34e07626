"""What happens before the first token: nothing is compiled for a model that is refused, nor for one like another."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import mlxr
from mlxr.cli import main
from mlxr.compiler import driver
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import TokenizerError, WeightsError
from mlxr.compiler.spec.catalog import find_spec
from mlxr.loading.resolve import resolve_artifact
from mlxr.runtime.engine import model_tokenizer
from mlxr.runtime.hosts.cpu import compile_units
from mlxr_tests.storyteller import TINY


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What is compiled, plans and C; an empty cache."""
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MLXR_DATA_DIR", str(tmp_path / "data"))
    seen: list[str] = []

    def noting(what: str, original: Callable[..., object]) -> Callable[..., object]:
        def note(*args: object, **options: object) -> object:
            seen.append(what)
            return original(*args, **options)

        return note

    monkeypatch.setattr(driver, "compile_spec", noting("plan", driver.compile_spec))
    monkeypatch.setattr(compile_units, "run_compiler", noting("C", compile_units.run_compiler))
    return seen


def _refused(path: Path) -> Path:
    """The tiny model, with a tokenizer of a kind that nobody knows."""
    data, key = TINY.read_bytes(), b"tokenizer.ggml.model"
    at = data.index(key) + len(key) + 4 + 8
    assert data[at : at + 5] == b"llama", "its kind"
    path.write_bytes(data[:at] + b"nokin" + data[at + 5 :])
    return path


@pytest.mark.parametrize("command", ["run", "chat", pytest.param("perplexity", marks=pytest.mark.long)])
def test_a_refused_tokenizer_is_told_first(
    command: str, compiled: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _refused(tmp_path / "strange.gguf")
    (tmp_path / "text").write_text("Once upon a time")
    own = {"run": ["--prompt", "A"], "perplexity": ["--text", str(tmp_path / "text")]}.get(command, [])
    assert main([command, str(path), "--host", "cpu", *own]) == 1
    assert "text needs a tokenizer: " in (said := capsys.readouterr().err) and "nokin" in said
    assert not compiled


def test_a_tokenizer_that_is_named_and_missing_is_told_first(compiled: list[str], tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="no such file"):
        mlxr.load(TINY, host="cpu", tokenizer=tmp_path / "tokenizer.json")
    assert not compiled


def test_weights_that_are_missing_or_of_another_model_are_told_first(compiled: list[str], tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    shutil.copy(find_spec("storyteller"), spec)
    with pytest.raises(WeightsError, match="comes without weights"):
        mlxr.load(spec, host="cpu")
    with pytest.raises(mlxr.MlxrError, match="tiny"):
        mlxr.load(spec, TINY, host="cpu")
    assert not compiled


def test_a_tokenizer_is_read_once(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = model_tokenizer.tokenizer_from_gguf

    def note(metadata: dict[str, object], source: str) -> object:
        read.append(source)
        return original(metadata, source)

    monkeypatch.setattr(model_tokenizer, "tokenizer_from_gguf", note)
    with mlxr.load(TINY, host="reference") as model:
        assert model.tokenizer is not None
    assert len(read) == 1 and compiled == ["plan"]


def test_nothing_is_compiled_for_a_model_like_another(compiled: list[str], tmp_path: Path) -> None:
    twin = tmp_path / "twin.gguf"
    twin.write_bytes(TINY.read_bytes())
    artifact, _ = resolve_artifact(str(TINY))
    like, _ = resolve_artifact(str(twin))
    assert compiled == ["plan"]
    assert like.spec.name == "twin" != artifact.spec.name
    assert like.files == compile_spec(like.spec).artifact.files, "what its own spec compiles to"
    again, _ = resolve_artifact(str(twin))
    assert again.files == like.files and len(list((tmp_path / "cache" / "artifacts").glob("*"))) == 2


def test_a_model_like_another_is_refused_all_the_same(
    compiled: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resolve_artifact(str(TINY))
    twin, refused = tmp_path / "twin.gguf", _refused(tmp_path / "refused.gguf")
    twin.write_bytes(TINY.read_bytes().replace(b"blk.0.ffn_norm.weight", b"blk.0.ffn_none.weight"))
    with pytest.raises(WeightsError, match=r"lacks 1 of the model's .* tensors: 'blk.0.ffn_norm.weight'"):
        mlxr.load(twin, host="cpu")
    assert main(["add", str(twin), "--host", "cpu"]) == 1
    assert main(["run", str(refused), "--host", "cpu", "--prompt", "A"]) == 1
    assert "blk.0.ffn_norm.weight" in (said := capsys.readouterr().err) and "nokin" in said
    assert compiled == ["plan"]
