"""Writes docs/commands.md, the help of every command: python docs/make_commands.py."""

import argparse
import contextlib
import importlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from mlxr.cli import COMMANDS, main
from mlxr.compiler.cli import main as compile_main
from mlxr.compiler.cli.parser import CommandParser

PAGE = Path(__file__).with_name("commands.md")
_COLUMNS = "110"
_ABOUT = """# Commands

What `--help` of each command prints. `python docs/make_commands.py` writes this page, and a test compares it with the
commands.

"""


def commands_page() -> str:
    """The text of the page."""
    helps = [("mlxr", _help("mlxr")), *((name, _help(name)) for name in _names()), ("mlxr-compile", _help(None))]
    return _ABOUT + "\n".join(f"## {name}\n\n```text\n{text}```\n" for name, text in helps)


def _names() -> Iterator[str]:
    """Every command, and every command of a command."""
    for name, (module, _) in COMMANDS.items():
        commands = CommandParser().add_subparsers()
        importlib.import_module(f"mlxr.cli.{module}").add_parser(commands)
        yield f"mlxr {name}"
        for action in commands.choices[name]._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from (f"mlxr {name} {word}" for word in action.choices)


def _help(name: str | None) -> str:
    """What a command prints for --help; None: mlxr-compile."""
    printed, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _COLUMNS
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            compile_main(["--help"]) if name is None else main([*name.split()[1:], "--help"])
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return printed.getvalue()


if __name__ == "__main__":
    if sys.version_info >= (3, 13):
        sys.exit("argparse writes options otherwise from Python 3.13 on: use 3.11 or 3.12")
    PAGE.write_text(commands_page(), encoding="utf-8")
