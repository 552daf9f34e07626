"""Where a prompt comes from: the command line, a file, or standard input."""

import argparse
import sys
from pathlib import Path

from mlxr.cli.argparse_types import text_argument
from mlxr.cli.terminal import refuse_other_bytes_than_text
from mlxr.compiler.errors import RequestError
from mlxr.runtime.parallel.launch import is_launched

_MOST_BYTES = 256 << 20
"""The most bytes of a file or standard input: more than any context holds, and less than a machine's memory."""


def add_prompt_source(parser: argparse.ArgumentParser) -> None:
    """Adds the argument and the options."""
    parser.add_argument(
        "text", nargs="?", type=text_argument, metavar="PROMPT", help="the prompt (default: what standard input holds)"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--prompt", type=text_argument, metavar="TEXT", help="the prompt, also one that begins with a hyphen"
    )
    source.add_argument(
        "--file", type=Path, metavar="FILE", help="a UTF-8 file with the prompt; a newline at its end is left out"
    )


def read_prompt(args: argparse.Namespace) -> str:
    """The prompt.

    Raises:
        RequestError: it is given twice, cannot be read, is not UTF-8, is too large, or a file or standard input is
            empty.
    """
    if args.text is not None and (args.prompt is not None or args.file is not None):
        option = "--prompt" if args.file is None else "--file"
        raise RequestError(f"there are two prompts, {args.text!r} and that of {option}: leave out one of them")
    given: str | None = args.prompt if args.text is None else args.text
    if given is not None:
        return given
    what = "the prompt on standard input" if args.file is None else f"--file {args.file}"
    try:
        text = _read_input() if args.file is None else _read_file(args.file)
    except OSError as error:
        raise RequestError(f"{what}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{what} is not {error.encoding}: {error.reason} at byte {error.start}") from error
    if text is None:
        raise RequestError(f"{what} has more than {_MOST_BYTES >> 20} Mi characters, which no model can read")
    text = text.removesuffix("\n")
    if not text:
        fix = "write it after MODEL, in quotes, or give --file FILE, or text on standard input"
        raise RequestError(f"the prompt is empty: {fix}" if args.file is None else f"{what} holds no text: {fix}")
    return text


def _read_input() -> str | None:
    """The text; None if it is too large."""
    if is_launched():
        raise RequestError(
            "mlx.launch does not say where standard input ends: write the prompt after MODEL, in quotes, or give "
            "--file FILE"
        )
    if sys.stdin.isatty():
        print("prompt (end with Ctrl-D):", file=sys.stderr)
    refuse_other_bytes_than_text()
    text = sys.stdin.read(_MOST_BYTES + 1)
    return None if len(text) > _MOST_BYTES else text


def _read_file(path: Path) -> str | None:
    """The text; None if it is too large."""
    with path.open("rb") as stream:
        data = stream.read(_MOST_BYTES + 1)
    return None if len(data) > _MOST_BYTES else data.decode("utf-8")
