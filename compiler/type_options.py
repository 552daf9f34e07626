"""The options that name the types of activations and cache; of every command that takes a model."""

import argparse

from mlxr.compiler.spec.change import Changes


def add_type_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--activations` and `--kv`."""
    parser.add_argument(
        "--activations",
        choices=("f32", "f16", "bf16"),
        help="element type of activations on GPUs (as the spec says; of .gguf files and folders 16 bits, unless all "
        "weights are f32)",
    )
    parser.add_argument(
        "--kv",
        choices=("f32", "f16", "bf16", "q8"),
        help="element type of the cache (as the spec says; of .gguf files and folders as activations, on CPUs f16)",
    )


def type_changes(args: argparse.Namespace) -> Changes:
    """What these options change of a spec."""
    return Changes(activation_dtype=args.activations, cache_dtype=args.kv)
