"""Artifacts whose files are not what their spec compiles to: none runs unless its user says so."""

from pathlib import Path

import pytest

import mlxr
from mlxr.cli import main
from mlxr.compiler.artifact import TUNING, Artifact
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.cli import main as compile_main
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import ArtifactError
from mlxr.compiler.spec.change import Changes
from mlxr.loading.resolve import resolve_artifact
from mlxr_tests.few import few
from mlxr_tests.specs import small_spec
from mlxr_tests.storyteller import Q8_0

TRUSTED = Changes(trust_artifact=True)


def _edited(files: dict[str, str], name: str) -> dict[str, str]:
    """Files of which one was edited; whoever writes them makes the manifest again, so that all hashes are right."""
    comment = {".c": "/* edited */\n", ".metal": "// edited\n"}.get(Path(name).suffix, " ")
    return files | {name: files[name] + comment}


@pytest.mark.parametrize("name", few(["cpu/model.c", "plan.json", "graph.source.txt"], ["cpu/model.c"]))
def test_an_edited_file_is_named_and_its_artifact_refused(name: str, tmp_path: Path) -> None:
    artifact = compile_spec(small_spec()).artifact
    Artifact(_edited(dict(artifact.files), name)).write(tmp_path / "a")
    with pytest.raises(ArtifactError, match=rf"a/{name} is not what this mlxr compiles spec.yaml to.*--trust-artifact"):
        resolve_artifact(str(tmp_path / "a"))
    assert resolve_artifact(str(tmp_path / "a"), TRUSTED)[0].files[name] != artifact.files[name]


def test_files_that_come_and_go_are_edits(tmp_path: Path) -> None:
    files = dict(compile_spec(small_spec()).artifact.files)
    Artifact(files | {"cpu/more.c": ""}).write(tmp_path / "a")
    with pytest.raises(ArtifactError, match=r"a/cpu/more\.c is not what"):
        resolve_artifact(str(tmp_path / "a"))
    del files["graph.decode.txt"]
    Artifact(files).write(tmp_path / "b")
    with pytest.raises(ArtifactError, match=r"b/graph\.decode\.txt is not what"):
        resolve_artifact(str(tmp_path / "b"))


@pytest.mark.parametrize("options", [{"targets": ["cpu"]}, {"chip": find_chip("h200")}])
def test_artifacts_of_some_targets_of_chips_and_of_ranks_are_what_their_specs_compile_to(
    options: dict[str, object], tmp_path: Path
) -> None:
    for name, spec in [("one", small_spec()), ("split", small_spec(parallel={"tensor": 2}))]:
        artifact = compile_spec(spec, **options).artifact  # type: ignore[arg-type]
        Artifact({**artifact.files, TUNING: "{}\n"}).write(tmp_path / name)
        assert resolve_artifact(str(tmp_path / name))[0].digest != artifact.digest, "times of a tuner are no code"
        file = next(name for name in artifact.files if name.endswith("model.c"))
        Artifact(_edited(dict(artifact.files), file)).write(tmp_path / name)
        with pytest.raises(ArtifactError, match=rf"{file} is not what"):
            resolve_artifact(str(tmp_path / name))


def test_commands_and_the_remedies_that_they_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLXR_DATA_DIR", str(tmp_path / "data"))
    folder = tmp_path / "edited"
    Artifact(_edited(dict(mlxr.compile("storyteller").files), "cpu/model.c")).write(folder)
    weights = ["--weights", str(Q8_0), "--host", "reference"]
    run = ["run", str(folder), *weights, "--prompt", "A", "--max-tokens", "1", "--json"]
    add = ["add", str(folder), *weights, "--name", "edited"]
    assert main(["inspect", str(folder)]) == 0, "it runs nothing"
    assert main(["diff", str(folder), "storyteller"]) == 0
    capsys.readouterr()
    for command in (run, add):
        assert main(command) == 1
        error = capsys.readouterr().err
        assert "edited/cpu/model.c is not what" in error
    assert main([*run, "--trust-artifact"]) == 0
    assert main([*add, "--trust-artifact"]) == 0
    with mlxr.load("edited", host="reference") as model:
        assert model.artifact.files["cpu/model.c"].endswith("/* edited */\n"), "its name has the option"
    remedy = error.split("mlxr-compile ")[1].split(";")[0].split()
    assert compile_main(remedy) == 0
    assert main(run) == 0
