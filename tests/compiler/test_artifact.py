"""Artifacts: whole or not at all, the same bytes for the same spec, refused when changed."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import mlxr
from mlxr.compiler.artifact import Artifact, folder_lock, load_artifact
from mlxr.compiler.artifact.kernel_entry import body_of, header_of
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import ArtifactError
from mlxr_tests.specs import compiled, small_spec


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return mlxr.compile("storyteller")


@pytest.fixture
def folder(artifact: Artifact, tmp_path: Path) -> Path:
    artifact.write(tmp_path / "artifact")
    return tmp_path / "artifact"


def test_what_is_written_reads_back_the_same(artifact: Artifact, folder: Path) -> None:
    read = load_artifact(folder)
    assert read.files == artifact.files
    assert read.plan == artifact.plan
    assert read.spec == artifact.spec
    assert read.digest == artifact.digest
    for name in ("source", "decode", "prefill"):
        assert read.graph(name).dump() == artifact.files[f"graph.{name}.txt"]


def test_the_files_are_those_of_the_manifest(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    on_disk = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert on_disk == {*manifest["files"], "manifest.json"}


def test_same_spec_same_bytes_for_any_hash_seed_and_folder(artifact: Artifact, tmp_path: Path) -> None:
    program = "import mlxr; print(mlxr.compile('storyteller').digest)"
    environment = os.environ | {"PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == artifact.digest


def test_a_kernel_file_holds_what_mlx_gets(artifact: Artifact) -> None:
    for kernel in artifact.plan.first.kernels:
        text = artifact.kernel_text(kernel.name)
        header, body = artifact.kernel_sections(kernel.name)
        assert (header, body) == (header_of(text), body_of(text))
        assert text.index(header) < text.index(f"void {kernel.name}(") < text.index(body)
        assert text.rstrip().endswith("}")


def test_every_file_is_guarded_by_its_hash(folder: Path) -> None:
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json"):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b" ")
        with pytest.raises(ArtifactError, match=f"{path.name} was changed"):
            load_artifact(folder)
        path.write_bytes(content)
    load_artifact(folder)


@pytest.mark.parametrize("kind", ["device", "pipe", "huge"])
def test_a_file_without_an_end_is_not_read(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is there who writes into the pipe."""
    for path in (folder / "plan.json", folder / "manifest.json"):
        if kind != "huge" and path.name == "manifest.json":
            continue  # without a regular one, it is no artifact
        before = path.read_bytes()
        path.unlink()
        if kind == "device":
            path.symlink_to("/dev/zero")
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            with path.open("wb") as stream:
                stream.truncate(1 << 40)  # of holes
        with pytest.raises(ArtifactError, match=r"it is not a regular file|it has more than"):
            load_artifact(folder)
        path.unlink()
        path.write_bytes(before)


def test_a_changed_manifest_is_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    dropped = dict(manifest["files"])
    dropped.popitem()
    for wrong, message in [
        (manifest | {"version": "0.0.1"}, "written by mlxr 0.0.1"),
        (manifest | {"format": 99}, "format 99"),
        (manifest | {"files": dropped}, "was changed"),
        (manifest | {"files": manifest["files"] | {"../outside": "0"}}, "outside the artifact"),
        (manifest | {"files": manifest["files"] | {"/etc/hostname": "0"}}, "outside the artifact"),
        (manifest | {"files": 3}, "is not a manifest"),
        ([], "is not a manifest"),
        ({}, "is not a manifest"),
    ]:
        path.write_text(json.dumps(wrong))
        with pytest.raises(ArtifactError, match=message):
            load_artifact(folder)
    path.write_text("[" * 200_000)
    with pytest.raises(ArtifactError, match="cannot be read"):
        load_artifact(folder)
    path.write_text("{")
    with pytest.raises(ArtifactError, match="cannot be read"):
        load_artifact(folder)


def test_a_missing_file_or_artifact_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "plan.json").unlink()
    with pytest.raises(ArtifactError, match=r"plan\.json cannot be read"):
        load_artifact(folder)
    with pytest.raises(ArtifactError, match="no such folder; mlxr-compile SPEC"):
        load_artifact(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": []}, "parallel.json does not describe ranks"),
        ({"tensor": 0}, "parallel.json does not describe ranks"),
        ({"tensor": 1, "pipeline": 2}, "rank-0/plan.json is of another part of a model"),
    ],
)
def test_ranks_that_do_not_fit_together_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    files = dict(compile_spec(small_spec(parallel={"tensor": 2}), targets=["cpu"]).artifact.files)
    Artifact(files | {"parallel.json": json.dumps(json.loads(files["parallel.json"]) | changes)}).write(tmp_path / "a")
    with pytest.raises(ArtifactError, match=message):
        load_artifact(tmp_path / "a")


def _edits(value: Any) -> Iterator[Any]:
    """A JSON value with each part of it left out, or replaced by something of another type or size."""
    yield from (None, {}, value + 1 if type(value) is int else 10**9)
    for key in value if isinstance(value, dict) else range(len(value))[-1:] if isinstance(value, list) else ():
        rest = value.copy()
        old = rest.pop(key)
        yield rest
        for new in _edits(old):
            changed = value.copy()
            changed[key] = new
            yield changed


def test_no_edit_of_parallel_json_passes(tmp_path: Path) -> None:
    """Its hashes are right: whoever edited it made the manifest again."""
    artifact = compile_spec(small_spec(parallel={"tensor": 2}, model__num_layers=1), targets=["cpu"]).artifact
    said = json.loads(artifact.files["parallel.json"])
    folder = tmp_path / "a"
    artifact.write(folder)
    edits = [edit for edit in _edits(said) if edit != said]
    for edit in [*edits, said | {"pipeline": 2, "ranks": said["ranks"] * 2}]:
        text = json.dumps(edit)
        (folder / "parallel.json").write_text(text)
        (folder / "manifest.json").write_text(Artifact(artifact.files | {"parallel.json": text}).manifest)
        with pytest.raises(ArtifactError, match=r"(parallel\.json|rank-\d).*compile the spec again"):
            load_artifact(folder)


def test_writing_replaces_an_artifact_and_nothing_else(artifact: Artifact, folder: Path, tmp_path: Path) -> None:
    (folder / "graph.source.txt").write_text("from before")
    artifact.write(folder)
    assert load_artifact(folder).digest == artifact.digest
    (folder / "model.safetensors").write_text("weights kept beside the plan")
    with pytest.raises(ArtifactError, match=r"holds 'model.safetensors', which its artifact does not list"):
        artifact.write(folder)
    assert (folder / "model.safetensors").exists()
    other = tmp_path / "precious"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    for path, message in [
        (other, "exists and is not an artifact"),
        (other / "letter.txt", "letter.txt is not a folder, but an artifact is"),
        (Path("/dev/null"), "/dev/null is not a folder"),
    ]:
        with pytest.raises(ArtifactError, match=message):
            artifact.write(path)
    assert (other / "letter.txt").read_text() == "dear"
    assert {p.name for p in tmp_path.iterdir()} == {"artifact", "precious"}, "no staging folders are left"


def test_the_folder_keeps_its_mode(artifact: Artifact, folder: Path) -> None:
    folder.chmod(0o2750)
    artifact.write(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o2750


def test_several_may_write_into_one_folder_while_others_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "artifact"
    spec = small_spec()
    artifacts = [compiled(spec), compile_spec(spec, targets=["cpu"]).artifact]  # one has files that the other lacks
    artifacts[0].write(folder)

    def write_and_read(number: int) -> None:
        for _ in range(6):
            artifacts[number % 2].write(folder)
            load_artifact(folder)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write_and_read, range(8)))
    assert load_artifact(folder).digest in [artifact.digest for artifact in artifacts]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_that_is_locked_for_long_is_used_all_the_same(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_lock, "_PATIENCE_S", 0.01)
    with folder_lock.alone_in(tmp_path):
        artifact.write(tmp_path / "artifact")
    assert load_artifact(tmp_path / "artifact").digest == artifact.digest


def test_the_working_folder_and_links_are_written_where_they_are(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "link").symlink_to(target)
    artifact.write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert load_artifact(target).digest == artifact.digest
    monkeypatch.chdir(target)
    artifact.write(Path())
    assert load_artifact(target).digest == artifact.digest
    assert {p.name for p in tmp_path.iterdir()} == {"target", "link"}


def test_an_unwritable_place_leaves_nothing_behind(artifact: Artifact, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot write"):
        artifact.write(tmp_path / "file" / "artifact")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_failure_half_way_keeps_the_old_artifact(
    artifact: Artifact, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text = Path.write_text

    def full(self: Path, *args: object, **options: object) -> int:
        if self.suffix == ".metal":
            raise OSError(28, "No space left on device")
        return write_text(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ArtifactError, match="No space left"):
        artifact.write(folder)
    monkeypatch.undo()
    assert load_artifact(folder).digest == artifact.digest
    assert [p.name for p in folder.parent.iterdir()] == ["artifact"]


def test_kernels_are_found_by_name_or_label(artifact: Artifact) -> None:
    kernel = artifact.plan.first.kernels[0]
    assert artifact.kernel_entry(kernel.name) == artifact.kernel_entry(kernel.label) == kernel
    with pytest.raises(ArtifactError, match=f"no kernel named 'nope'. It has {kernel.label}"):
        artifact.kernel_text("nope")
    twin = kernel.model_copy(update={"name": f"{kernel.name}0"})
    plan = artifact.plan.with_program("metal", kernels=(*artifact.plan.first.kernels, twin))
    several = Artifact({**artifact.files, "plan.json": plan.model_dump_json()})
    assert several.kernel_entry(kernel.name) == kernel
    with pytest.raises(ArtifactError, match=f"several kernels named .*full name: {kernel.name}, {twin.name}"):
        several.kernel_entry(kernel.label)
