"""`mlxr add`, `list`, `show`, `remove`; and names of registered models wherever MODEL is taken."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mlxr
from mlxr.cli import main
from mlxr.compiler import driver
from mlxr.compiler.artifact import load_artifact
from mlxr.loading.find_model import find_model
from mlxr.loading.options import LoadOptions
from mlxr.registry import RegistryError
from mlxr.registry.registry import Registry
from mlxr.server.pool.model_source import ModelSource
from mlxr_tests.small_templates import TEMPLATES
from mlxr_tests.storyteller import TINY

RUN = ["--temperature", "0", "--prompt", "Once", "--max-tokens", "3", "--host", "reference", "--json"]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's file; registry and cache are empty, and so is the working folder."""
    monkeypatch.setenv("MLXR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("mlxr.loading.add_model.prepare", lambda host, artifact: None)  # it takes seconds
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return Path(shutil.copy(TINY, tmp_path / "tiny.gguf"))


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command that prints JSON."""

    def run(*words: object, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([str(word) for word in words]) == code
        return json.loads(capsys.readouterr().out)

    return run


def test_a_registered_model_runs_by_its_name_without_compiling(
    tiny: Path, answer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    added = answer("add", tiny, "--name", "org/tiny:q8", "--context", "64", "--compute", "exact", "--json")
    assert (added["name"], added["kind"], added["source"]) == ("org/tiny:q8", "gguf", str(tiny))
    assert added["files"][0]["size_bytes"] == added["size_bytes"] == tiny.stat().st_size
    compile_spec = driver.compile_spec
    monkeypatch.setattr(driver, "compile_spec", None)
    named = answer("run", "org/tiny:q8", *RUN)
    by_path = answer("run", tiny, *RUN, "--context", "64", "--compute", "exact")
    assert named["token_ids"] == by_path["token_ids"]
    assert answer("list", "--json")["models"][0]["last_used"] >= added["added"]
    with mlxr.Engine("org/tiny:q8", host="reference") as served:
        assert served.model.artifact.plan.arena.max_sequences == 16
    with mlxr.load("org/tiny:q8", host="reference") as model:
        assert (model.artifact.plan.arena.context, model.artifact.spec.compute) == (64, "exact")
    monkeypatch.setattr(driver, "compile_spec", compile_spec)
    with mlxr.Engine("org/tiny:q8", host="reference", max_sequences=2, changes=mlxr.Changes(context=32)) as engine:
        assert engine.model.artifact.plan.arena.context == 32
    assert mlxr.compile("org/tiny:q8").spec.model.context == 64
    for command in (["inspect"], ["import"], ["tokenize", "--prompt", "A"], ["show"]):
        assert main([command[0], "org/tiny:q8", *command[1:]]) == 0


def test_a_model_that_is_not_registered_is_shown(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tiny)]) == 0
    shown = capsys.readouterr().out
    assert "family     llama, 2 layers" in shown and "Q8_0" in shown and "up to 512 tokens" in shown
    assert main(["show", str(tiny), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["context"], facts["quantization"], facts["templates"]) == (512, "Q8_0", [])
    assert facts["size_bytes"] == tiny.stat().st_size


def test_the_bundled_model_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "storyteller"]) == 0
    shown = capsys.readouterr().out
    assert "source     storyteller" in shown and "family     llama, 6 layers" in shown and "up to 1,024 tokens" in shown


def test_a_spec_is_shown_with_its_weights(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(tiny), "-o", str(tmp_path / "own.yaml")]) == 0
    assert main(["show", str(tmp_path / "own.yaml")]) == 1
    assert "--weights" in capsys.readouterr().err
    assert main(["show", str(tmp_path / "own.yaml"), "--weights", str(tiny)]) == 0
    assert "Q8_0" in capsys.readouterr().out


def test_weights_of_another_model_are_not_shown(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "storyteller", "--weights", str(tiny)]) == 1
    shown = capsys.readouterr()
    assert f"{tiny}: these are weights of another model" in shown.err and not shown.out


def test_paths_are_kept_as_people_write_them(tiny: Path, answer: Callable[..., Any], tmp_path: Path) -> None:
    """Links stay, and so does `..` where a link comes before it, because it means another folder there."""
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "chosen").mkdir()
    (tmp_path / "chosen" / "tiny.gguf").symlink_to(tiny)
    shutil.copy(tiny, tmp_path / "deep" / "tiny.gguf")
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "er")
    for given, kept in {
        "../tiny.gguf": tiny,
        "../here/../chosen/tiny.gguf": tmp_path / "chosen" / "tiny.gguf",
        "../link/../tiny.gguf": tmp_path / "here/../link/../tiny.gguf",
    }.items():
        added = answer("add", given, "--name", "tiny", "--replace", "--json")
        assert (added["source"], added["files"][0]["path"]) == (str(kept), str(kept))


def test_what_run_and_serve_load_is_compiled_ahead(
    tiny: Path, answer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared = []
    monkeypatch.setattr("mlxr.loading.add_model.prepare", lambda host, artifact: prepared.append((host.name, artifact)))
    assert main(["add", str(tiny), "--host", "cpu"]) == 0
    assert [(name, artifact.plan.arena.max_sequences) for name, artifact in prepared] == [("cpu", 1), ("cpu", 16)]
    folders = [Path(row["folder"]) for row in answer("show", "tiny", "--json")["artifacts"]]
    assert [load_artifact(folder).spec for folder in folders] == [artifact.spec for _, artifact in prepared]
    monkeypatch.setattr(driver, "compile_spec", None)
    for source in (ModelSource("tiny", "tiny"), ModelSource("tiny", str(tiny), LoadOptions(host="cpu"))):
        source.planned_memory()
    assert main(["remove", "tiny"]) == 0
    assert "2 artifacts from the cache" in capsys.readouterr().out and not any(map(Path.exists, folders))


def test_a_path_wins_over_a_name(tiny: Path, answer: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["add", str(tiny)]) == 0
    assert "added tiny: " in capsys.readouterr().out
    assert (model := find_model("tiny").registered) is not None and model.source == tiny
    Path("tiny").symlink_to(tiny)
    assert find_model("tiny").registered is None
    assert main(["run", "tinny", "--prompt", "A"]) == 1
    told = capsys.readouterr().err
    assert main(["serve", "tinny"]) == 1 and capsys.readouterr().err == told, "before it listens"
    assert "tinny: no such file, and no bundled or registered model of that name" in told
    assert '; registered are tiny\n  fix: did you mean "tiny"?' in told


def test_a_file_that_has_changed_or_is_missing_is_noticed(
    tiny: Path, answer: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answer("add", tiny, "--json")
    before = tiny.stat()
    content = bytearray(tiny.read_bytes())
    content[-1] ^= 1
    tiny.write_bytes(content)
    assert answer("show", "tiny", "--json", code=1)["status"] == "changed"
    for _ in range(2):
        assert main(["run", "tiny", *RUN]) == 0
    note = (
        f"note: tiny: changed {tiny} since it was added; to add it as it is now: mlxr add {tiny} --name tiny --replace"
    )
    assert capsys.readouterr().err.count(note) == 1
    os.utime(tiny, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert answer("show", "tiny", "--json")["status"] == "ok", "size and time are what they were"
    shown = answer("show", "tiny", "--verify", "--json", code=1)
    assert (shown["status"], shown["status_file"], shown["verified"]) == ("changed", str(tiny), True)
    answer("add", tiny, "--replace", "--json")
    assert answer("show", "tiny", "--verify", "--json")["status"] == "ok"
    tiny.unlink()
    assert answer("list", "--json")["models"][0]["status"] == "missing"
    assert main(["list"]) == 0
    assert "missing tiny.gguf" in capsys.readouterr().out
    assert main(["run", "tiny", *RUN]) == 1
    assert f"tiny is registered for {tiny}, which is not there any more" in capsys.readouterr().err


def test_removing_leaves_the_users_files(
    tiny: Path, answer: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        answer("add", tiny, "--name", name, "--json")
    cached = tiny.parent / "cache" / "artifacts"
    mine = cached / "mine"
    mine.mkdir()
    answer("add", tiny, "--name", "c", "--compute", "exact", "--json")
    assert main(["cache", "clear", "artifacts"]) == main(["show", "c"]) == 0
    assert "not in the cache any more: the next run compiles it again" in capsys.readouterr().out
    assert answer("remove", "c", "--json")["removed_from_cache"] == []
    answer("run", "a", *RUN)
    assert answer("remove", "a", "--json") == {"name": "a", "removed_from_cache": []}
    assert len(list(cached.iterdir())) == 2
    assert len(answer("remove", "b", "--json")["removed_from_cache"]) == 1
    assert list(cached.iterdir()) == [mine] and tiny.read_bytes() == TINY.read_bytes()
    assert answer("list", "--json")["models"] == []
    assert main(["remove", "b"]) == 1


def test_specs_and_artifacts_need_weights_and_options_hold(
    tiny: Path, answer: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(tiny), "-o", "spec.yaml"]) == 0
    mlxr.compile("spec.yaml").write("built")
    Path("plain.jinja").write_text("{{ messages[0].content }}!")
    expected = answer("run", tiny, *RUN, "--template", "plain.jinja")
    for source, kind in (("spec.yaml", "spec"), ("built", "artifact")):
        assert main(["add", source, "--name", kind]) == 1
        assert "comes without weights: name a file or folder of them (--weights W)" in capsys.readouterr().err
        options = ["--weights", tiny, "--host", "reference", "--template", "plain.jinja"]
        added = answer("add", source, "--name", kind, *options, "--json")
        assert (added["kind"], added["options"]["weights"], len(added["files"])) == (kind, str(tiny), 2)
        got = answer("run", kind, "--prompt", "Once", "--max-tokens", "3", "--temperature", "0", "--json")
        assert (got["host"], got["token_ids"]) == ("reference", expected["token_ids"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("storyteller", "is the name of a bundled model"),
        ("/x", "cannot be the name of a model"),
        ("x/", "cannot be the name"),
        ("a/../b", "cannot be the name"),
        ("a//b", "cannot be the name"),
        ("-x", "cannot be the name"),
        ("a b", "cannot be the name"),
        ("é", "cannot be the name"),
        ("x" * 201, "at most 200"),
        ("", "cannot be the name"),
    ],
)
def test_names_that_no_model_may_have(tiny: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["add", str(tiny), f"--name={name}"]) == 1
    assert message in capsys.readouterr().err
    assert not (tiny.parent / "data").exists() and not (tiny.parent / "cache").exists(), "refused before any work"


def test_a_registry_that_cannot_be_written_does_not_stop_a_run(
    tiny: Path, answer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer("add", tiny, "--name", "read-only", "--json")

    def refuse(self: Registry, name: str) -> None:
        raise RegistryError("read-only file system")

    monkeypatch.setattr(Registry, "touch", refuse)
    for _ in range(2):
        assert main(["run", "read-only", *RUN]) == 0
    told = capsys.readouterr().err
    assert told.count("note: this use is not noted in the registry: read-only file system") == 1
    (tiny.parent / "data" / "registry.db").write_bytes(b"damaged" * 1000)
    assert main(["run", str(tiny), *RUN]) == 0, "a path needs no registry"
    assert main(["run", "read-only", *RUN]) == 1
    told = capsys.readouterr().err
    assert "read-only: no such file, and no bundled model of that name; whether it is registered cannot be" in told
    assert "the registry is damaged" in told


@pytest.mark.parametrize("command", [["add"], ["serve", "--port", "0"]])
def test_a_tokenizer_that_is_refused_is_told_before_anything_is_compiled(
    tiny: Path, command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tiny.read_bytes()
    kind = b"tokenizer.ggml.model" + bytes([8, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0])
    assert data.count(kind + b"llama") == 1
    tiny.write_bytes(data.replace(kind + b"llama", kind + b"other"))
    compiled: list[object] = []
    monkeypatch.setattr("mlxr.loading.add_model.cached_artifact", lambda *spec: compiled.append(spec))
    assert main([command[0], str(tiny), *command[1:]]) == 1
    assert "its tokenizer is of the kind 'other', which is not supported" in capsys.readouterr().err
    assert not compiled
    assert not Registry().names()


def test_show_tells_how_answers_are_written(tiny: Path, answer: Callable[..., Any], capsys: Any) -> None:
    Path("form.jinja").write_text(TEMPLATES["kimi"])
    answer("add", tiny, "--name", "kimi", "--template", "form.jinja", "--context", "64", "--json")
    shown = answer("show", "kimi", "--json")["answers"]
    assert (shown["origin"], shown["calls"]["style"]) == ("rendered", "named")
    assert shown["calls"]["body"] == ["name", ":", "number", "<|call_args|>", "arguments"]
    assert main(["show", "kimi"]) == 0
    told = capsys.readouterr().out
    assert '"<|call_begin|>functions.NAME:NUMBER<|call_args|>{ARGUMENTS}<|call_end|>"' in told
    assert '"<|calls_begin|>" to "<|calls_end|>"' in told and '"<think>" to "</think>"' in told
    assert answer("show", tiny, "--json")["answers"] is None
