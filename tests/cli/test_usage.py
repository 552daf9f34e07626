"""Help comes at once; a mistake in options is told with the command's own usage and the nearest right word."""

import argparse
import gc
import importlib
import signal
import subprocess
import sys
from types import ModuleType

import pytest

from mlxr.cli import COMMANDS, main
from mlxr.cli.argparse_types import token_count
from mlxr.compiler.cli import main as compile_main
from mlxr.compiler.cli.parser import CommandParser

_HELP = """
import sys
sys.path[:] = {path}
from mlxr.cli import main
try:
    main(["--help"])
except SystemExit:
    print([name for name in ("mlx", "numpy", "pydantic", "yaml", "jinja2", "difflib") if name in sys.modules])
"""


def test_only_a_process_of_its_own_puts_off_searches_through_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gc.get_threshold()
    monkeypatch.setattr(sys, "argv", ["mlxr", "--version"])
    try:
        for given, is_own in ((["--version"], False), (None, True)):
            with pytest.raises(SystemExit):
                main(given)
            assert (gc.get_threshold() == before) != is_own
    finally:
        gc.set_threshold(*before)


def test_ctrl_c_while_a_command_is_imported_waits_for_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, imported = importlib.import_module, []

    def import_module(name: str) -> ModuleType:
        try:
            signal.raise_signal(signal.SIGINT)
            imported.append(name)
        except KeyboardInterrupt:
            raise ImportError("what the interrupt becomes in some libraries") from None
        return real(name)

    monkeypatch.setattr(importlib, "import_module", import_module)
    assert main(["run"]) == 130
    assert imported[0] == "mlxr.cli.run"
    assert capsys.readouterr().err == "interrupted\n"


def test_help_loads_nothing_slow() -> None:
    program = _HELP.format(path=sys.path)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
    assert all(f"\n    {name}" in run.stdout for name in COMMANDS)


def test_the_help_of_all_commands_says_what_that_of_each_says() -> None:
    for name, (module, line) in COMMANDS.items():
        commands = CommandParser().add_subparsers()
        importlib.import_module(f"mlxr.cli.{module}").add_parser(commands)
        assert [(action.dest, action.help) for action in commands._choices_actions] == [(name, line)]


@pytest.mark.parametrize(
    ("arguments", "usage", "message"),
    [
        ("run storyteller --promt A", "mlxr run", "there is no option --promt; did you mean --prompt?"),
        ("run storyteller --promt=A", "mlxr run", "there is no option --promt; did you mean --prompt?"),
        ("run storyteller --wings", "mlxr run", "there is no option --wings"),
        ("run storyteller A B", "mlxr run", "unexpected argument 'B'; a text with spaces needs quotes"),
        ("run storyteller --seed 1 A B", "mlxr run", "unexpected argument 'B'; a text with spaces needs quotes"),
        ("run storyteller --context 8q", "mlxr run", "'8q' is not a whole number of tokens, such as 8192 or 8k"),
        ("run storyteller --host gpu", "mlxr run", "; auto takes this machine's GPU, if there is one"),
        ("serve --host 0.0.0.0", "mlxr serve", "where the server listens is --address 0.0.0.0"),
        ("serve --host localhost", "mlxr serve", "where the server listens is --address localhost"),
        ("serve --model storyteller", "mlxr serve", "a model by its own name needs no --model: mlxr serve storyteller"),
        ("help rum", "mlxr", "'rum' is not a command; expected run, chat,"),
        ("run storyteller --host cuba", "mlxr run", "--host: 'cuba' is not one of the choices; expected auto, metal,"),
        ("run storyteller --seed x", "mlxr run", "--seed: 'x' is not a whole number"),
        ("run storyteller --top-p x", "mlxr run", "--top-p: 'x' is not a number"),
        ("run storyteller --seed", "mlxr run", "--seed: its value is missing"),
        ("rum storyteller", "mlxr", "'rum' is not a command; expected run, chat,"),
        ("rum storyteller", "mlxr", "; did you mean run?"),
        ("cache lost", "mlxr cache", "'lost' is not a command; expected list or clear; did you mean list?"),
    ],
)
def test_a_mistake_is_told_with_the_right_word(
    arguments: str, usage: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    first, second = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert first.startswith(f"{usage}: error: ") and message in first
    assert second.startswith(f"usage: {usage} [OPTION ...] ") and f"; {usage} --help tells more" in second


@pytest.mark.parametrize("words", [[], ["help"], ["--help"]])
def test_the_commands_are_shown_to_whoever_asks_for_nothing(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    out = capsys.readouterr().out
    assert ended.value.code == 0 and all(f"\n    {name}" in out for name in COMMANDS)


def test_help_shows_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["help", "cache", "list"], ["cache", "list", "--help"]):
        with pytest.raises(SystemExit):
            main(words)
    shown = capsys.readouterr().out
    assert shown.startswith("usage: mlxr cache list [-h]") and shown.count("usage: mlxr cache list [-h]") == 2


def test_words_of_other_programs_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    for words, usage in ((["rm", "--help"], "mlxr remove"), (["help", "ls"], "mlxr list")):
        with pytest.raises(SystemExit):
            main(words)
        assert capsys.readouterr().out.startswith(f"usage: {usage} ")


def test_arguments_may_stand_after_options() -> None:
    """As argparse itself takes them only from Python 3.13 on."""

    def parsed(words: str) -> argparse.Namespace:
        parser = CommandParser()
        parser.add_argument("model")
        parser.add_argument("text", nargs="?")
        parser.add_argument("--seed", type=token_count)
        return parser.parse_args(words.split())

    for words in ("m --seed 2k t", "m t --seed 2k", "--seed 2k m t", "m --seed 2K -- t"):
        assert vars(parsed(words)) == {"model": "m", "text": "t", "seed": 2048}, words
    assert parsed("m --seed 1 -- -t").text == "-t"
    assert parsed("m --seed 7").text is None
    several = CommandParser()
    several.add_argument("models", nargs="*")
    several.add_argument("--port")
    for words in ("a b --port 1", "a --port 1 b", "--port 1 a b"):
        assert several.parse_args(words.split()).models == ["a", "b"], words


def test_the_package_is_the_command() -> None:
    run = subprocess.run([sys.executable, "-m", "mlxr", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("mlxr ")


def test_the_compilers_own_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compile_main(["storyteller", "--ouput", "x"])
    assert "there is no option --ouput; did you mean --output?" in capsys.readouterr().err


def test_a_target_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        compile_main(["storyteller", "--target", "metal,gpu"])
    assert "--target: there is no target 'gpu'; targets are metal, cpu" in capsys.readouterr().err
