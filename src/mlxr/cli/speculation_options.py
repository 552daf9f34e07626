"""The options that let a command guess tokens, and what its statistics say of that."""

import argparse
from typing import get_args

from mlxr.cli.argparse_types import model_name
from mlxr.loading.options import Mtp
from mlxr.runtime.engine.core_stats import CoreStats


def add_speculation_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options; `load_model` reads them."""
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--draft",
        type=model_name,
        metavar="MODEL",
        help="a smaller model of the same vocabulary that guesses tokens, or a head that was trained for the model "
        "(EAGLE-3), so that a step checks several: the same answers, faster where most guesses are right",
    )
    ways.add_argument(
        "--prompt-lookup",
        action="store_true",
        help="guess tokens without a model, where the text repeats itself; the same answers",
    )
    parser.add_argument(
        "--mtp",
        choices=get_args(Mtp),
        default="auto",
        help="whether the model's own head guesses tokens (multi-token prediction); the same answers. auto: if it "
        "has one, as long as that pays, and not beside --draft or --prompt-lookup; on: refuse a model without one "
        "(auto)",
    )


def speculation_stats(stats: CoreStats) -> dict[str, object]:
    """Counts for --json: draft tokens tried and accepted, and their effect; null where nothing was tried."""
    rate, tokens = stats.acceptance_rate, stats.tokens_per_step
    return {
        "draft_tokens": stats.draft_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "acceptance_rate": None if rate is None else round(rate, 3),
        "tokens_per_step": None if tokens is None else round(tokens, 2),
    }


def speculation_line(stats: CoreStats) -> str | None:
    """The same for people; None if no request speculated."""
    if stats.tokens_per_step is None:
        return None
    rate = "" if stats.acceptance_rate is None else f" ({stats.acceptance_rate:.0%})"
    return (
        f"speculation: {stats.accepted_tokens} of {stats.draft_tokens} draft tokens accepted{rate}, "
        f"{stats.tokens_per_step:.2f} tokens for each step"
    )
