"""What a newcomer types by mistake, and what is told of it: what it is, and what to do instead."""

import ast
import gzip
import io
import re
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from mlxr.cli import main
from mlxr.cli.terminal import print_table
from mlxr.compiler.cli import main as compile_main
from mlxr.compiler.errors import SpecError
from mlxr.compiler.spec.document import read_document
from mlxr.server import run_server
from mlxr_tests.storyteller import BF16, GOLDEN, ROOT

TINY = GOLDEN / "tiny-Q8_0.gguf"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with what people have lying about."""
    monkeypatch.chdir(tmp_path)
    for folder in ("two", "weights", "empty", "hf", "cloned"):
        (tmp_path / folder).mkdir()
    for name in ("model", "x.gguf", "two/a.gguf", "two/b.gguf"):
        (tmp_path / name).symlink_to(TINY)
    for name in ("weights/model.safetensors", "hf/model.safetensors", "hf/config.json"):
        (tmp_path / name).symlink_to(BF16.with_name(Path(name).name))
    (tmp_path / "hf/tokenizer.model").write_text("damaged")
    (tmp_path / "cloned/config.json").symlink_to(BF16.with_name("config.json"))
    for name in ("cloned/model.safetensors", "pointer.gguf", "tokenizer.json"):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    (tmp_path / "picture.gguf").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    (tmp_path / "page.gguf").write_bytes(b"\n<!DOCTYPE html>\n<html>")
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as packed, tarfile.open(tmp_path / "model.tar", "w") as tarred:
        packed.write(TINY, "x.gguf")
        tarred.add(__file__, "x.gguf")
    (tmp_path / "model.gz").write_bytes(gzip.compress(b"x"))
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "notes.txt").write_text("name: notes")
    (tmp_path / "plain.jinja").write_text("{{ messages[0].content }}")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run two", "it holds 2 .gguf files; name one of them: a.gguf, b.gguf"),
        ("run weights", "it holds weights, but no config.json, which says what model they are of"),
        ("run empty", "it holds no config.json and no .gguf file"),
        ("run hf/model.safetensors", "holds weights and does not say what model they are of; name the folder that has"),
        ("run hf/config.json", "describes the model in its folder and is not a spec; name the folder: hf\n"),
        ("run empty.gguf", "empty.gguf: corrupt GGUF file: it is empty; get the file again"),
        ("run pointer.gguf", "pointer.gguf is a Git LFS pointer, a few lines that stand for the real file: fetch"),
        ("run cloned", "cloned/model.safetensors is a Git LFS pointer"),
        ("tokenize tokenizer.json", "tokenizer.json is a Git LFS pointer"),
        ("run picture.gguf", "picture.gguf is a PNG picture\n"),
        ("run storyteller --weights picture.gguf", "picture.gguf is a PNG picture\n"),
        ("run page.gguf", "page.gguf is a web page, not the file that it should be"),
        ("run model.zip", "model.zip is a zip archive: unpack it"),
        ("import model.tar", "model.tar is a tar archive: unpack it"),
        ("run model.gz", "model.gz is compressed by gzip: unpack it"),
        ("run nosuch.gguf", "nosuch.gguf: no such file"),
        ("run hf", "hf/tokenizer.model: corrupt"),
        ("run x.gguf --temperature -1", "error: --temperature is -1.0, expected a number from 0"),
        ("run x.gguf --top-k -1", "error: --top-k is -1, expected a whole number"),
        ("import nosuch.gguf", "nosuch.gguf: no such file or folder; expected a .gguf file, or a folder with"),
        ("import two", "two is not a model: it holds 2 .gguf files; name one of them: a.gguf, b.gguf"),
        ("import notes.txt", "notes.txt is not a model; expected a .gguf file, or a folder with a config.json"),
        ("import storyteller", "storyteller is a bundled spec already: /"),
    ],
)
def test_what_is_not_a_model(here: Path, command: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = {"run": ["--host", "reference", "A"], "tokenize": ["A"]}.get(command.split(maxsplit=1)[0], [])
    assert main([*command.split(), *prompt]) == 1
    told = capsys.readouterr().err
    assert message in told
    assert "there is none" not in told and "is no " not in told


def test_names_in_files_do_not_control_the_terminal(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A message quotes them, and `mlxr list` shows them; \x1b]0; sets a window's title, \u202e turns the direction."""
    (here / "bad.yaml").write_text('name: "a\\x1b]0;mine\\x07\\u202e"\nwings: 1\n')
    (here / "\x1b[31mred.gguf").write_bytes(b"GGUF")
    for model in ("bad.yaml", "\x1b[31mred.gguf"):
        assert main(["run", model, "hi"]) == 1
        told = capsys.readouterr().err
        assert "\x1b" not in told and "\x07" not in told and "\u202e" not in told
    assert r"\x1b[31mred.gguf" in told
    print_table([("name",), ("a\x1b[2Jb\x9b",)])
    assert capsys.readouterr().out.splitlines()[1] == r"a\x1b[2Jb\x9b"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("picture.gguf", "picture.gguf is a PNG picture"),
        ("notes.txt", "notes.txt:1:1: "),
        ("empty", "it holds no config.json and no .gguf file"),
        ("hf", "hf/tokenizer.model: corrupt"),
    ],
)
def test_what_cannot_be_served_is_refused_at_once(
    here: Path, model: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLXR_DATA_DIR", str(here / "data"))
    monkeypatch.setattr(run_server, "run_server", lambda *_: 0)
    for command in ("serve", "add"):
        assert main([command, model]) == 1, command
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "x.gguf",
            "x.gguf is a GGUF file, not a spec; mlxr run x.gguf runs it as it is, mlxr import x.gguf -o spec.yaml",
        ),
        ("model", "model is a GGUF file, not a spec; "),
        ("hf", "hf is the folder of a model, not a spec; mlxr run hf runs it as it is, mlxr import hf -o spec.yaml"),
        ("two", "two is a folder; expected a spec file"),
        ("hf/model.safetensors", "holds weights and does not say what model they are of"),
    ],
)
def test_what_is_not_a_spec(here: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compile_main([name]) == 1
    assert message in capsys.readouterr().err


def test_a_gguf_file_needs_no_suffix(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "model"]) == 0
    assert "name: model\n" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["run x.gguf", "chat x.gguf --template plain.jinja"])
def test_bytes_that_are_not_text(
    here: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in the C.UTF-8 locale, where Python would let them pass."""
    stream = io.TextIOWrapper(io.BytesIO(b"a\xff\n"), encoding="utf-8", errors="surrogateescape")
    monkeypatch.setattr(sys, "stdin", stream)
    assert main([*command.split(), "--host", "reference"]) == 1
    assert "on standard input is not utf-8: invalid start byte" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", "x.gguf", "--prompt", "a\udcff"])
    assert "--prompt: the text is not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n    b: 1\n  c: 2\n", "3:3: not YAML: this key is indented unlike those above it"),
        ("a: 1\n   ^b: 2\n", "2:4: not YAML: b is not allowed here"),
        ("a: b^: c\n", "1:5: not YAML: a ':' is not allowed here"),
        ("a: b\n- c\n", "2:1: not YAML: a list item stands among keys"),
        ("- b\nc: d\n", "2:1: not YAML: a key stands among the items of a list"),
        ("a: ^[1, 2\n", "1:4: not YAML: a [ without its ]"),
        ("a: ^{b: 2\n", "1:4: not YAML: a { without its }"),
        ("a: [\n", "the text ends where a value is expected"),
        ('a: ^"b\nc: d\n', "1:4: not YAML: a quote that is not closed"),
        ('a: "b\\qc"\n', "not YAML: \\q is not an escape"),
        ("a: @b\n", "1:4: not YAML: a value cannot begin with @"),
        ("a: b\n}\n", "2:1: not YAML: } is not allowed here"),
        ('"日本": ^@', "1:7: not YAML: a value cannot begin with @"),
    ],
)
def test_text_that_is_not_yaml_is_told_of_in_plain_words(text: str, message: str) -> None:
    """The ^ is where it must point; wide characters take two columns of a terminal."""
    with pytest.raises(SpecError) as told:
        read_document(text.replace("^", ""), "x.yaml")
    words = str(told.value)
    assert message in words
    assert not any(word in words for word in ("<", "while ", "mapping", "scalar", "token"))
    if "^" in text:
        before = next(line for line in text.splitlines() if "^" in line).partition("^")[0]
        assert (
            words.splitlines()[2]
            == " " * 6 + " | " + " " * (len(before) + sum(char in "日本" for char in before)) + "^"
        )


def test_messages_are_plain_english() -> None:
    """No text for people says that something `is no artifact`, or puts a plural after 1."""
    odd = re.compile(
        r"(?<!there )\b(?:is|are) no (?!faster|slower|longer|such|more|less)\w|sequences are wanted|built anew"
    )
    found = []
    for folder in ("compiler", "runtime", "src/mlxr"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text()
            if not re.search(r"\b(?:is|are)[\s\"'f]+no\b|wanted|anew", source):
                continue
            tree = ast.parse(source)
            bodies = [
                node.body for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            ]
            about = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
            texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in about]
            found += [f"{path}: {text.value}" for text in texts if odd.search(str(text.value))]
    assert not found
