"""The options that change a spec: types and determinism, for every command that takes a model, and the split."""

import argparse

from pydantic import ValidationError

from mlxr.compiler.spec.change import Changes
from mlxr.compiler.spec.parallel import MAX_RANKS, Parallel


def add_type_arguments(parser: argparse.ArgumentParser, *, takes_specs: bool = True) -> None:
    """Adds `--activations`, `--kv` and `--deterministic`.

    Args:
        parser: the parser that gets them.
        takes_specs: whether the command's model may be a spec, which has types of its own.
    """
    default = "what the spec says; for .gguf files and folders " if takes_specs else ""
    parser.add_argument(
        "--activations",
        choices=("f32", "f16", "bf16"),
        help=f"element type of activations on GPUs (default: {default}16 bits, or f32 where all weights are f32)",
    )
    parser.add_argument(
        "--kv",
        choices=("f32", "f16", "bf16", "q8", "q4"),
        help=f"element type of the cache (default: {default}that of the activations, and f16 on CPUs)",
    )

    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="give a sequence the same bits whatever else is in its batch and however it is cut into steps; this is "
        "slower, except with --compute exact on CPUs, which always does so",
    )


def type_changes(args: argparse.Namespace) -> Changes:
    """The changes to a spec that these options ask for."""
    return Changes(activation_dtype=args.activations, cache_dtype=args.kv, deterministic=args.deterministic)


def add_parallel_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--tensor-parallel`, `--pipeline-parallel`, `--layers` and `--shares`, in a group of their own."""
    group = parser.add_argument_group("one model over several machines")
    group.add_argument(
        "--tensor-parallel",
        type=_ranks,
        metavar="N",
        help="split every layer over N ranks: heads, columns of MLPs, experts, vocabulary (default: as the spec says)",
    )
    group.add_argument(
        "--pipeline-parallel",
        type=_ranks,
        metavar="N",
        help="split the layers over N stages, each of as many ranks as --tensor-parallel says, or one",
    )
    group.add_argument(
        "--layers", type=_counts, metavar="N,...", help="layers of each stage (default: stages of equal weight)"
    )
    group.add_argument(
        "--shares",
        type=_fractions,
        metavar="F,...",
        help="the part of the model that each rank of a stage has, or each stage, as fractions whose sum is 1 "
        "(default: by the spec's memory_budget, or equal)",
    )


def parallel_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Parallel | None:
    """The split that these options ask for; None: they are not given. Options that contradict each other end it."""
    if args.tensor_parallel is None and args.pipeline_parallel is None:
        if args.layers is not None or args.shares is not None:
            option, values = ("--layers", args.layers) if args.layers is not None else ("--shares", args.shares)
            parser.error(f"{option} is for a split: add --pipeline-parallel {len(values)}")
        return None
    tensor, pipeline = args.tensor_parallel or 1, args.pipeline_parallel or 1
    try:
        return Parallel(tensor=tensor, pipeline=pipeline, layers=args.layers, shares=args.shares)
    except ValidationError as error:
        (found,) = error.errors()
        parser.error("; ".join(f"{text}: {fix}" if fix else text for _, text, fix in found["ctx"]["found"]))


def _ranks(text: str) -> int:
    count = _whole(text)
    if not 2 <= count <= MAX_RANKS:
        raise argparse.ArgumentTypeError(f"{text} does not split anything; expected 2 to {MAX_RANKS}")
    return count


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(_whole(part) for part in text.split(","))
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: every stage has at least 1 layer")
    return counts


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _fractions(text: str) -> tuple[float, ...]:
    try:
        fractions = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are not numbers; expected fractions such as 0.6,0.4") from None
    if not all(0 < fraction <= 1 for fraction in fractions):
        raise argparse.ArgumentTypeError(f"{text!r}: every share is above 0, and 1 at most")
    return fractions
