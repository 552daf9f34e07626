"""`import mlxr` as a newcomer uses it: what it loads and compiles, what it exports, and how things print."""

import shutil
import textwrap
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

import mlxr
from mlxr.compiler import errors
from mlxr.compiler.spec.change import _TYPES
from mlxr.runtime.weights import gguf_header
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


def test_loading_a_gguf_file_scans_its_header_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Importing, loading, finding the tokenizer and the chat template all need it; large ones take a while."""
    scans = []
    scan = gguf_header._scan
    monkeypatch.setattr(gguf_header, "_scan", lambda *arguments: scans.append(arguments[1]) or scan(*arguments))
    path = shutil.copy(GOLDEN / "tiny-Q8_0.gguf", tmp_path)
    with mlxr.load(path, host="reference") as loaded, pytest.raises(errors.ChatTemplateError):
        loaded.chat_template()
    assert len(scans) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mlxr.load(5), "model is 5, of type int; expected an artifact, a spec, or a name or path"),  # type: ignore
        (lambda: mlxr.load(Q8_0, 5), "weights is 5, of type int; expected the path"),  # type: ignore
        (lambda: mlxr.load(Q8_0, host=None), "host is None; expected a host's name"),  # type: ignore
        (lambda: mlxr.load(Q8_0, threads="2"), "threads is '2', of type str; expected a whole number"),  # type: ignore
        (lambda: mlxr.load(Q8_0, changes={}), "changes is {}, of type dict; expected mlxr.Changes"),  # type: ignore
        (lambda: mlxr.Changes(context="64"), "context is '64', of type str; expected a whole number or None"),  # type: ignore
        (lambda: mlxr.Changes(sequences=True), "sequences is True, of type bool; expected a whole number"),
        (lambda: mlxr.Changes(cache_dtype=16), "cache_dtype is 16, of type int; expected text or None"),  # type: ignore
        (lambda: mlxr.Changes(accepted_keys="a"), "accepted_keys is 'a', of type str; expected a tuple of keys"),  # type: ignore
        (lambda: mlxr.Changes(accepted_keys=(1,)), "accepted_keys has 1, of type int; expected text"),  # type: ignore
        (lambda: mlxr.Changes(force_context=1), "force_context is 1, of type int; expected True or False"),  # type: ignore
        (lambda: mlxr.compile(Q8_0).write(5), "os.PathLike object"),  # type: ignore
        (lambda: mlxr.compile(b"x"), "spec is b'x', of type bytes; expected a ModelSpec, or a name or path"),  # type: ignore
    ],
)
def test_wrong_types_are_told_in_words(call: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError) as error:
        call()
    assert message in str(error.value)


def test_every_field_of_changes_has_its_type() -> None:
    assert _TYPES.keys() == {field.name for field in fields(mlxr.Changes)}


def test_the_example_of_the_package_is_a_program() -> None:
    """`help(mlxr)` shows it indented, and it runs as it stands there."""
    lines = (mlxr.__doc__ or "").splitlines()
    example = [line for line in lines if line.startswith("    ")]
    assert lines.index(example[0]) > 0 and len(example) == 4
    program = compile(textwrap.dedent("\n".join(example)), "mlxr.__doc__", "exec")
    assert {"mlxr", "model", "print"} <= set(program.co_names)


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
    for one in (artifact, plan, plan.first, plan.first.phases[0], plan.programs["cpu"]):
        for text in (str(one), repr(one)):
            assert len(text) < 100, text
