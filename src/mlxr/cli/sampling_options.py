"""The options that say how tokens are chosen."""

import argparse

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.sampling import Sampling


def add_sampling_arguments(parser: argparse.ArgumentParser, temperature: float = 0.0) -> None:
    """Adds the options; `temperature` is the default temperature."""
    parser.add_argument(
        "--temperature",
        type=float,
        default=temperature,
        metavar="T",
        help="0: always the most probable token; 1: sample from the model's own probabilities "
        f"(default: {temperature:g})",
    )
    parser.add_argument(
        "--top-k", type=int, default=0, metavar="K", help="sample from the K most probable tokens (default: 0, all)"
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="sample from the most probable tokens that together have probability P (default: 1, all)",
    )
    parser.add_argument(
        "--min-p",
        type=float,
        default=0.0,
        metavar="P",
        help="sample from tokens at least P times as probable as the most probable one (default: 0, all)",
    )
    parser.add_argument(
        "--seed", type=int, metavar="S", help="the same seed gives the same text (default: a different one each time)"
    )


def sampling_of(args: argparse.Namespace) -> Sampling:
    """What the options say.

    Raises:
        RequestError: a number is out of its range.
    """
    try:
        return Sampling(args.temperature, args.top_k, args.top_p, args.min_p, args.seed)
    except RequestError as error:  # it names what Python calls the option
        name, _, what = str(error).partition(" ")
        raise RequestError(f"--{name.replace('_', '-')} {what}") from error
