"""The options for types and for determinism, for every command that takes a model."""

import argparse

from mlxr.compiler.spec.change import Changes


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
        choices=("f32", "f16", "bf16", "q8"),
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
