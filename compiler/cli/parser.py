"""The argument parser of `mlxr` and `mlxr-compile`: argparse with plainer messages and spelling suggestions.

It imports nothing heavy, so that help comes at once.
"""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from mlxr.compiler.version import full_version


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser that says in plain words what is wrong with options, commands and choices.

    Unlike argparse, a subcommand's parser reports unknown options itself, and in two lines instead of with the usage of
    all options; and arguments may stand after options, as in `mlxr run MODEL --seed 1 PROMPT`, in every Python.
    """

    def _parse_known_args(self, *args: Any, **options: Any) -> tuple[argparse.Namespace, list[str]]:
        """Parses the arguments; exits with 2 if any are left over."""
        parsed, left = super()._parse_known_args(*args, **options)
        if left and (left := self._fill(parsed, left)):
            self._refuse(left)
        return parsed, []

    def _fill(self, parsed: argparse.Namespace, left: list[str]) -> list[str]:
        """Gives words that are left over to arguments that may have them; returns the others."""
        end = left.index("--") if "--" in left else len(left)
        words = [word for word in left[:end] if not word.startswith("-") or word == "-"] + left[end + 1 :]
        options = [word for word in left[:end] if word.startswith("-") and word != "-"]
        for action in self._get_positional_actions():
            given = getattr(parsed, action.dest, None)
            if action.nargs == argparse.ZERO_OR_MORE and words:
                setattr(parsed, action.dest, [*(given or []), *self._get_values(action, words)])
                words = []
            elif action.nargs == argparse.OPTIONAL and given is action.default and words:
                setattr(parsed, action.dest, self._get_values(action, [words.pop(0)]))
        return options + words

    def error(self, message: str) -> NoReturn:
        """Says what is wrong, and in a line how the command is used; exits with 2."""
        self.exit(2, f"{self.prog}: error: {message}\n{self._short_usage()}; {self.prog} --help tells more\n")

    def _short_usage(self) -> str:
        """The usage without its options."""
        if self.usage is not None:
            return f"usage: {self.usage}"
        formatter = argparse.HelpFormatter(f"{self.prog} [OPTION ...]", width=1000)
        formatter.add_usage(None, self._get_positional_actions(), [])
        return formatter.format_help().strip()

    def _refuse(self, left: list[str]) -> NoReturn:
        options = [word.partition("=")[0] for word in left if word.startswith("-") and word != "-"]
        if not options:
            self.error(f"unexpected argument {left[0]!r}; a text with spaces needs quotes")
        self.error(f"there is no option {options[0]}{meant_choice(options[0], self._option_string_actions)}")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            if action.type not in (int, float):
                raise
            what = "a whole number" if action.type is int else "a number"
            raise argparse.ArgumentError(action, f"{arg_string!r} is not {what}") from error

    def _match_argument(self, action: argparse.Action, arg_strings_pattern: str) -> int:
        try:
            return super()._match_argument(action, arg_strings_pattern)
        except argparse.ArgumentError as error:
            if action.nargs is not None:
                raise
            raise argparse.ArgumentError(action, "its value is missing") from error

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        what = "a command" if isinstance(action, argparse._SubParsersAction) else "one of the choices"
        meant = getattr(action, "meant", meant_choice)
        names = f"{', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else choices[0]
        raise argparse.ArgumentError(
            action, f"{str(value)!r} is not {what}; expected {names}{meant(str(value), choices)}"
        )


class VersionAction(argparse.Action):
    """`--version`: asks for the version only when it is wanted, because in a clone git has to be asked."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Prints it and exits with 0."""
        print(f"mlxr {full_version()}")
        parser.exit()


def meant_choice(word: str, choices: Iterable[str]) -> str:
    """A "did you mean" hint with the choice nearest to a word; empty if none is near.

    An action with an attribute `meant` is asked that instead.
    """
    import difflib  # noqa: PLC0415 (only for mistakes)

    like = difflib.get_close_matches(word, list(choices), n=1)
    return f"; did you mean {like[0]}?" if like else ""
