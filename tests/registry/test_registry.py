"""The registry's file: rows come back as they were, processes share it, and what is not a registry is refused."""

import itertools
import multiprocessing
import os
import random
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mlxr.compiler.spec.change import Changes
from mlxr.loading.options import LoadOptions, merged
from mlxr.registry import RegistryError, database
from mlxr.registry.database import data_folder
from mlxr.registry.records import ArtifactRecord, FileRecord, ModelRecord
from mlxr.registry.registry import Registry
from mlxr_tests.registry_users import add_and_remove

FILES = (FileRecord(Path("/m/a.gguf"), 7, 123456789012345678, "a" * 64), FileRecord(Path("/m/b"), 0, 5, "b" * 64))
OPTIONS = LoadOptions(
    Path("/m/w"), Path("/m/t"), "cpu", 3, Changes(context=64, accepted_keys=("x", "y"), cache_memory="1GiB"), "{{ 1 }}"
)
MODEL = ModelRecord("qwen", Path("/m/a.gguf"), "gguf", "hash", OPTIONS, FILES, 1.5)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "data" / "registry.db")


def artifact(folder: str, spec_hash: str = "hash", chip: str = "", sequences: int = 1) -> ArtifactRecord:
    return ArtifactRecord(spec_hash, chip, "1", Path(folder), 2.5, sequences)


def test_a_model_comes_back_as_it_was(registry: Registry) -> None:
    assert (registry.get("qwen"), registry.models(), registry.names()) == (None, (), ())
    assert not registry.path.parent.exists(), "questions create nothing"
    odd = replace(MODEL, name="odd", source=Path(os.fsdecode(b"/m/\xff")), options=LoadOptions(), files=())
    registry.add(MODEL, "the spec", [artifact("/cache/x")])
    registry.add(odd, "the spec")
    assert registry.models() == (odd, MODEL)
    assert registry.get("qwen") == MODEL and MODEL.size_bytes == 7
    assert registry.spec("hash") == "the spec" and registry.spec("other") is None
    registry.touch("qwen")
    touched = registry.get("qwen")
    assert touched is not None and touched.last_used is not None and touched.last_used > 1e9
    with pytest.raises(RegistryError, match=r"'qwen' is registered already, for /m/a\.gguf"):
        registry.add(MODEL, "the spec")
    registry.add(replace(MODEL, spec_hash="other", options=LoadOptions()), "another", replace=True)
    assert registry.spec("other") == "another"
    again = registry.get("qwen")
    assert again is not None and again.options.template is None


def test_an_artifact_goes_with_the_last_model_of_its_spec(registry: Registry) -> None:
    registry.add(MODEL, "spec", [artifact("/cache/x"), artifact("/cache/z", sequences=16)])
    registry.add(replace(MODEL, name="twin"), "spec")
    registry.add_artifact(artifact("/cache/y", chip="m4"))
    assert [record.folder.name for record in registry.artifacts("hash")] == ["x", "z", "y"]
    assert registry.remove("qwen") == ()
    all_three = (artifact("/cache/x"), artifact("/cache/z", sequences=16), artifact("/cache/y", chip="m4"))
    assert registry.remove("twin") == all_three
    assert registry.artifacts() == () and registry.spec("hash") is None
    with pytest.raises(RegistryError, match="no model is registered as 'twin'"):
        registry.remove("twin")
    with pytest.raises(RegistryError, match="no registered model has the spec"):
        registry.add_artifact(artifact("/cache/x"))


def test_processes_share_it(registry: Registry) -> None:
    """They also create it at the same time."""
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=add_and_remove, args=(registry.path, MODEL, number, 12)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 3
    expected = {f"model-{number}-{index}" for number in range(3) for index in range(0, 12, 2)} | {"shared"}
    assert set(registry.names()) == expected
    assert all(len(model.files) == 2 for model in registry.models())
    with sqlite3.connect(registry.path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("kills", [8, pytest.param(100, marks=pytest.mark.long)])
def test_killed_processes_leave_it_whole(registry: Registry, kills: int) -> None:
    """Each is killed at a random moment, some while they create the registry; what one added is whole or not there."""
    chance = random.Random(0)
    for number in itertools.count():
        if number >= kills and registry.path.exists():
            break
        worker = multiprocessing.get_context("fork").Process(
            target=add_and_remove, args=(registry.path, MODEL, number, 1000)
        )
        worker.start()
        time.sleep(chance.uniform(0.0, 0.06) * (1 + number // kills))  # longer where a busy machine let none make it
        worker.kill()
        worker.join()
        for model in registry.models():
            assert model.files == FILES and model.options == OPTIONS
        for name in registry.names():
            if chance.random() < 0.9:
                registry.remove(name)
    with sqlite3.connect(registry.path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_older_tables_are_brought_up_to_date(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.add(MODEL, "spec")
    steps = (*database.MIGRATIONS, "ALTER TABLE models ADD COLUMN note TEXT; UPDATE models SET note = 'kept'")
    monkeypatch.setattr(database, "MIGRATIONS", steps)
    assert registry.get("qwen") == MODEL
    with sqlite3.connect(registry.path) as db:
        assert db.execute("SELECT note FROM models").fetchone() == ("kept",)
        assert db.execute("PRAGMA user_version").fetchone() == (3,)
    monkeypatch.undo()
    for use in (registry.names, lambda: registry.touch("qwen")):
        with pytest.raises(
            RegistryError, match=r"registry\.db: a newer MLXR wrote this registry \(version 3; .* up to 2"
        ):
            use()


def test_artifacts_of_the_first_version_stay(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MIGRATIONS", database.MIGRATIONS[:1])
    registry.add(MODEL, "spec")
    with sqlite3.connect(registry.path) as db:
        db.execute("INSERT INTO artifacts VALUES ('hash', 'm4', '1', ?, 2.5)", (b"/cache/y",))
    monkeypatch.undo()
    assert registry.artifacts("hash") == (artifact("/cache/y", chip="m4"),)


def test_a_step_that_fails_leaves_the_tables_as_they_were(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.add(MODEL, "spec")
    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, "CREATE TABLE more (a); DROP TABLE absent"))
    with pytest.raises(RegistryError, match="no such table: absent"):
        registry.names()
    monkeypatch.undo()
    assert registry.names() == ("qwen",)


@pytest.mark.parametrize("damage", ["text", "torn", "other"])
def test_what_is_not_a_registry_is_refused_and_kept(registry: Registry, damage: str) -> None:
    registry.add(MODEL, "spec")
    content = registry.path.read_bytes()
    if damage == "other":
        registry.path.unlink()
        with sqlite3.connect(registry.path) as db:
            db.execute("CREATE TABLE letters (text)")
    else:
        start = 0 if damage == "text" else 100
        registry.path.write_bytes(content[:start] + b"not a registry " * 2000)
    before = registry.path.read_bytes()
    message = "a database of another program" if damage == "other" else "is damaged .*Move the file away"
    for use in (registry.models, lambda: registry.add(MODEL, "spec")):
        with pytest.raises(RegistryError, match=rf"(?s)registry\.db: .*{message}"):
            use()
    assert registry.path.read_bytes() == before


def test_a_busy_registry_is_told(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.add(MODEL, "spec")
    monkeypatch.setattr(database, "PATIENCE_S", 0.05)
    with sqlite3.connect(registry.path, isolation_level=None) as db:
        db.execute("BEGIN IMMEDIATE")
        assert registry.get("qwen") == MODEL, "readers do not wait"
        with pytest.raises(RegistryError, match="another process has been writing the registry for 0 s"):
            registry.touch("qwen")


def _in_a_folder_that_cannot_be_written(path: Path) -> None:
    if os.getuid() == 0:
        os.setuid(65534)
    assert Registry(path).get("qwen") == MODEL
    with pytest.raises(RegistryError, match=r"cannot write the registry: .*set MLXR_DATA_DIR to a folder"):
        Registry(path).touch("qwen")


def test_a_registry_that_cannot_be_written_can_be_read(registry: Registry, tmp_path: Path) -> None:
    registry.add(MODEL, "spec")
    registry.path.chmod(0o444)
    registry.path.parent.chmod(0o555)
    for folder in tmp_path.parents[: len(tmp_path.parents) - 2]:
        if os.getuid() == 0:
            folder.chmod(folder.stat().st_mode | 0o111)
    tmp_path.chmod(0o755)
    worker = multiprocessing.get_context("fork").Process(
        target=_in_a_folder_that_cannot_be_written, args=(registry.path,)
    )
    worker.start()
    worker.join(60)
    registry.path.parent.chmod(0o755)
    assert worker.exitcode == 0


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RegistryError, match="cannot write the registry"):
        Registry(tmp_path / "file" / "registry.db").add(MODEL, "spec")


@pytest.mark.parametrize(
    ("variables", "platform", "expected"),
    [
        ({"MLXR_DATA_DIR": "/d", "XDG_DATA_HOME": "/x"}, "linux", "/d"),
        ({"XDG_DATA_HOME": "/x"}, "linux", "/x/mlxr"),
        ({"HOME": "/h"}, "linux", "/h/.local/share/mlxr"),
        ({"HOME": "/h", "XDG_DATA_HOME": "/x"}, "darwin", "/h/Library/Application Support/mlxr"),
    ],
)
def test_the_folder(variables: dict[str, str], platform: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLXR_DATA_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", platform)
    assert data_folder() == Path(expected)


def test_a_callers_options_win() -> None:
    registered = Changes(context=64, compute="exact", accepted_keys=("a",))
    given = Changes(context=32, sequences=4, accepted_keys=("b", "a"))
    assert merged(registered, given) == Changes(context=32, sequences=4, compute="exact", accepted_keys=("a", "b"))
    assert merged(Changes(), given) == given
