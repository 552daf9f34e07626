"""`import mlxr` as a newcomer uses it: what it loads and compiles, what it exports, and how things print."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import mlxr
from mlxr.compiler import errors
from mlxr_tests.storyteller import BF16, GOLDEN, Q8_0, TOKENIZER, storyteller_spec

TINY = GOLDEN / "tiny-Q4_K_M.gguf"


def hugging_face_folder(folder: Path) -> Path:
    for path in (BF16, BF16.with_name("config.json"), TOKENIZER):
        shutil.copy(path, folder)
    return folder


def test_what_a_command_loads_python_loads_and_compiles(tmp_path: Path) -> None:
    """Each kind of MODEL is compiled and loaded, which takes its seconds."""
    spec, small = storyteller_spec(), mlxr.Changes(context=64)
    written = tmp_path / "artifact"
    mlxr.compile(TINY).write(str(written))
    for model, weights in ((TINY, None), (hugging_face_folder(tmp_path), None), (spec, Q8_0), (str(written), TINY)):
        with mlxr.load(model, weights, host="reference", changes=small) as loaded:
            assert loaded.artifact.plan.arena.context == 64
            assert len(loaded.generate([1, 403], max_tokens=1).token_ids) == 1
        if model != str(written):
            assert mlxr.compile(model, changes=small).digest == loaded.artifact.digest


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mlxr.load(5), "model is 5, of type int; expected an artifact, a spec, or a name or path"),  # type: ignore
        (lambda: mlxr.load(Q8_0, 5), "weights is 5, of type int; expected the path"),  # type: ignore
        (lambda: mlxr.load(Q8_0, host=None), "host is None; expected a host's name"),  # type: ignore
        (lambda: mlxr.load(Q8_0, threads="2"), "threads is '2', of type str; expected a whole number"),  # type: ignore
        (lambda: mlxr.load(Q8_0, changes={}), "changes is {}, of type dict; expected mlxr.Changes"),  # type: ignore
        (lambda: mlxr.compile(Q8_0).write(5), "expected str, bytes or os.PathLike object, not int"),  # type: ignore
        (lambda: mlxr.compile(b"x"), "spec is b'x', of type bytes; expected a ModelSpec, or a name or path"),  # type: ignore
    ],
)
def test_wrong_types_are_told_in_words(call: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError) as error:
        call()
    assert message in str(error.value)


def test_every_error_is_exported() -> None:
    tree = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.MlxrError)]
    assert len(tree) > 10
    for one in tree:
        assert getattr(mlxr, one.__name__) is one
        assert one.__name__ in mlxr.__all__
    with pytest.raises(mlxr.MlxrError, match="no such file"):
        mlxr.load("nosuch.gguf")


def test_big_things_print_as_a_line() -> None:
    artifact = mlxr.compile("storyteller")
    plan = artifact.plan
    assert str(artifact).startswith("<Artifact storyteller: ")
    for one in (artifact, plan, plan.steps[0], plan.cpu):
        for text in (str(one), repr(one)):
            assert len(text) < 100, text
