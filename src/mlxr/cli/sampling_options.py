"""The options that say how tokens are chosen."""

import argparse

from mlxr.compiler.errors import OptionError, RequestError
from mlxr.runtime.engine.default_sampling import USUAL, told
from mlxr.runtime.engine.model import Model
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.engine.sampling.options import OF_MODELS

_NONE = Sampling()
_NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options. What is not given is as the model's own files say; --stats tells it."""

    def default(name: str) -> str:
        return f"(default: the model's own, else {USUAL[name]:g})"

    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="0: always the most probable token; 1: sample from the model's own probabilities "
        + default("temperature"),
    )
    parser.add_argument(
        "--top-k", type=int, metavar="K", help=f"sample from the K most probable tokens; 0: all {default('top_k')}"
    )
    parser.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help=f"sample from the most probable tokens that together have probability P; 1: all {default('top_p')}",
    )
    parser.add_argument(
        "--min-p",
        type=float,
        metavar="P",
        help="sample from tokens at least P times as probable as the most probable one; 0: all " + default("min_p"),
    )
    parser.add_argument(
        "--repetition-penalty",
        type=float,
        metavar="R",
        help="above 1: tokens that came before get less probable (default: the model's own, else 1, none)",
    )
    parser.add_argument(
        "--seed", type=int, metavar="S", help="the same seed gives the same text (default: a different one each time)"
    )


def sampling_of(args: argparse.Namespace) -> Sampling:
    """What the options say; the model's own defaults are for the others.

    Raises:
        RequestError: a number is out of its range.
    """
    try:
        return Sampling.of_model(**{name: value for name in _NAMES if (value := getattr(args, name)) is not None})
    except OptionError as error:
        raise RequestError(f"--{error.option.replace('_', '-')} {error.what}") from error


def sampling_line(model: Model, sampling: Sampling) -> str:
    """How tokens are chosen, and who says so, for people."""
    own = model.default_sampling
    chosen = own.completed(sampling)
    line = f"sampling: {told({name: getattr(chosen, name) for name in OF_MODELS})}; by default: {own}"
    return "\n".join([line, *(f"note: {note}" for note in own.notes)])


def sampling_stats(model: Model, sampling: Sampling) -> dict[str, object]:
    """The same for programs; `model` is what the model's own files say, `source` which of them."""
    own = model.default_sampling
    chosen = own.completed(sampling)
    told_of = {name: getattr(chosen, name) for name in OF_MODELS if getattr(chosen, name) != getattr(_NONE, name)}
    return {
        "temperature": chosen.temperature,
        **told_of,
        "seed": chosen.seed,
        "model": dict(own.options),
        "source": own.source,
        "notes": list(own.notes),
    }
