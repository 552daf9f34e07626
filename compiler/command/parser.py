"""The argument parser of `mlxr` and `mlxr-compile`: argparse, whose mistakes come with the nearest right word.

Imports nothing heavy: help must come at once.
"""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser that tells of unknown options, commands and choices in plain words.

    Unlike argparse's own, a command's parser tells of its unknown options itself: with its own usage, not that of all
    commands.
    """

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Parses, and ends the process with 2 where something is left over."""
        parsed, left = super().parse_known_args(args, namespace)
        if left:
            self._refuse(left)
        return parsed, []

    def _refuse(self, left: list[str]) -> NoReturn:
        options = [word.partition("=")[0] for word in left if word.startswith("-") and word != "-"]
        if not options:
            self.error(f"unexpected argument {left[0]!r}; a text with spaces needs quotes")
        self.error(f"there is no option {options[0]}{_meant(options[0], self._option_string_actions)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        what = "a command" if isinstance(action, argparse._SubParsersAction) else "one of the choices"
        names = f"{', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else choices[0]
        raise argparse.ArgumentError(
            action, f"{str(value)!r} is not {what}; expected {names}{_meant(str(value), choices)}"
        )


def _meant(word: str, choices: Iterable[str]) -> str:
    """A question that names the choice most like a word, if one is like it at all."""
    import difflib  # noqa: PLC0415 (only for mistakes)

    like = difflib.get_close_matches(word, list(choices), n=1)
    return f"; did you mean {like[0]}?" if like else ""
