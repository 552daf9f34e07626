"""The options that say how tokens are chosen, where the answer ends, and what it must look like."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from mlxr.cli.streams import text_argument
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.sampling import Sampling

_MOST_BYTES = 16 << 20
_NUMBERS: list[tuple[str, Callable[[str], float], str, float | None, str]] = [
    ("top_k", int, "K", 0, "sample from the K most probable tokens (default: 0, all)"),
    (
        *("top_p", float, "P", 1.0),
        "sample from the most probable tokens that together have probability P (default: 1, all)",
    ),
    (
        *("min_p", float, "P", 0.0),
        "sample from tokens at least P times as probable as the most probable one (default: 0, all)",
    ),
    (
        *("typical_p", float, "P", 1.0),
        "sample from the tokens that surprise most nearly as much as is to be expected and together have probability P "
        "(default: 1, all)",
    ),
    ("seed", int, "S", None, "the same seed gives the same text (default: a different one each time)"),
    (
        *("repetition_penalty", float, "R", 1.0),
        "divide positive logits of tokens in the prompt or the answer by R, and multiply others (default: 1)",
    ),
    ("frequency_penalty", float, "F", 0.0, "subtract F from a token's logit for each time it has come (default: 0)"),
    ("presence_penalty", float, "F", 0.0, "subtract F from a token's logit once it has come (default: 0)"),
    (
        *("dry_multiplier", float, "M", 0.0),
        "DRY: subtract M from the logit of a token that would continue a repetition (default: 0, off; 0.8 is usual)",
    ),
    ("dry_base", float, "B", 1.75, "DRY: times B for each further repeated token (default: 1.75)"),
    ("dry_allowed_length", int, "N", 2, "DRY: shorter repetitions cost nothing (default: 2)"),
    ("dry_range", int, "N", 0, "DRY: search the last N tokens for repetitions (default: 0, all)"),
]
"""Options that are a number: field of `Sampling`, type, letter, default, help."""
_OTHERS = (
    *("temperature", "logit_bias", "stop", "include_stop", "min_tokens", "max_tokens"),
    *("json_schema", "regex", "choice", "grammar"),
)
_NAMES = [name for name, *_ in _NUMBERS]
_OPTIONS = {name: f"--{name.replace('_', '-')}" for name in (*_NAMES, *_OTHERS)} | {"dry_breakers": "--dry-breaker"}
"""What the commands call the fields of `Sampling`."""


def add_sampling_arguments(parser: argparse.ArgumentParser, temperature: float = 0.0) -> None:
    """Adds the options; `temperature` is the default temperature."""
    group = parser.add_argument_group("how tokens are chosen (docs/SAMPLING.md has the order)")
    group.add_argument(
        "--temperature",
        type=float,
        default=temperature,
        metavar="T",
        help="0: always the most probable token; 1: sample from the model's own probabilities "
        f"(default: {temperature:g})",
    )
    for name, kind, letter, default, text in _NUMBERS:
        group.add_argument(_OPTIONS[name], type=kind, default=default, metavar=letter, help=text)
    group.add_argument(
        "--dry-breaker",
        action="append",
        type=text_argument,
        metavar="TEXT",
        help='DRY: no repetition extends over this text; may be given several times (default: a newline, : " and *)',
    )
    group.add_argument(
        "--logit-bias",
        action="append",
        type=_bias,
        default=[],
        metavar="ID=VALUE",
        help="add VALUE to the logit of token ID; may be given several times",
    )
    _add_end(parser)
    _add_form(parser)


def _add_end(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where the answer ends")
    group.add_argument(
        "--stop",
        action="append",
        type=text_argument,
        default=[],
        metavar="TEXT",
        help="end the answer before this text; may be given several times",
    )
    group.add_argument("--include-stop", action="store_true", help="end it after that text instead")
    group.add_argument(
        "--min-tokens", type=int, default=0, metavar="N", help="do not end it before N tokens (default: 0)"
    )


def _add_form(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what the answer must be (at most one of these)")
    group.add_argument("--json-schema", type=Path, metavar="FILE", help="JSON of the schema in this file")
    group.add_argument("--regex", type=text_argument, metavar="TEXT", help="text that matches a regular expression")
    group.add_argument(
        "--choice",
        action="append",
        type=text_argument,
        metavar="TEXT",
        help="this text, or another one that is given in the same way",
    )
    group.add_argument(
        "--grammar", type=Path, metavar="FILE", help="a sentence of the Lark or GBNF grammar in this file"
    )


def sampling_of(args: argparse.Namespace) -> Sampling:
    """What the options say, and `--max-tokens` and `--ignore-eos` where the command has them.

    Raises:
        RequestError: a number is out of its range, options contradict each other, or a file cannot be read.
    """
    json_schema, grammar = _text_of("--json-schema", args.json_schema), _text_of("--grammar", args.grammar)
    breakers = {} if args.dry_breaker is None else {"dry_breakers": args.dry_breaker}
    try:
        return Sampling(
            temperature=args.temperature,
            **{name: getattr(args, name) for name in _NAMES},
            **breakers,
            logit_bias=dict(args.logit_bias),
            stop=args.stop,
            include_stop=args.include_stop,
            max_tokens=args.max_tokens,
            min_tokens=args.min_tokens,
            ignore_eos=getattr(args, "ignore_eos", False),
            json_schema=json_schema,
            regex=args.regex,
            choice=args.choice,
            grammar=grammar,
        )
    except RequestError as error:  # it names what Python calls the option
        names = "|".join(_OPTIONS)
        raise RequestError(re.sub(rf"\b({names})\b", lambda name: _OPTIONS[name[0]], str(error))) from error


def _bias(text: str) -> tuple[int, float]:
    """A value of `--logit-bias`, for argparse."""
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=VALUE, such as 15=-2.5") from error


def _text_of(option: str, path: Path | None) -> str | None:
    """The text of a file that an option names.

    Raises:
        RequestError: it cannot be read, is too large, or not UTF-8.
    """
    if path is None:
        return None
    try:
        with path.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise RequestError(f"{option} {path}: it has more than {_MOST_BYTES >> 20} MiB; expected a smaller file")
        return data.decode("utf-8")
    except OSError as error:
        raise RequestError(f"{option} {path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{option} {path} is not {error.encoding}: {error.reason} at byte {error.start}") from error
