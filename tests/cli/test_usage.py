"""Help comes at once; a mistake in options is told with the command's own usage and the nearest right word."""

import importlib
import subprocess
import sys

import pytest

from mlxr.cli import COMMANDS, main
from mlxr.compiler.cli import main as compile_main
from mlxr.compiler.command.parser import CommandParser

_HELP = """
import sys
sys.path[:] = {path}
from mlxr.cli import main
try:
    main(["--help"])
except SystemExit:
    print([name for name in ("mlx", "numpy", "pydantic", "yaml", "jinja2", "difflib") if name in sys.modules])
"""


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
        ("run storyteller A", "mlxr run", "unexpected argument 'A'; a text with spaces needs quotes"),
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
    told = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 2
    assert told.startswith(f"usage: {usage} [-h]")
    assert message in told


def test_the_compilers_own_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compile_main(["storyteller", "--ouput", "x"])
    assert "there is no option --ouput; did you mean --output?" in capsys.readouterr().err
