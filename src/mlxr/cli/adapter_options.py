"""The options of `mlxr serve` that say which LoRA adapters models have."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlxr.compiler.errors import RequestError
from mlxr.loading.adapter_paths import GivenAdapters, parse_adapter

_USUAL_SLOTS = 8
"""Places of a model for adapters, where clients may load some."""


def add_adapter_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a server."""
    group = parser.add_argument_group("LoRA adapters, which requests choose by the model's name: MODEL:NAME, or NAME")
    group.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME=PATH[:SCALE]",
        dest="adapters",
        help="a folder of PEFT or mlx-lm, or a GGUF file; may be given several times; where several models are served, "
        "MODEL:NAME=PATH",
    )
    group.add_argument(
        "--adapter-slots",
        type=int,
        metavar="N",
        help=f"adapters that a model may have at once (default: those given; with --allow-adapters {_USUAL_SLOTS})",
    )
    group.add_argument(
        "--adapter-rank",
        type=int,
        metavar="R",
        help="the highest rank (default: that of those given, else 16)",
    )
    group.add_argument(
        "--allow-adapters",
        action="store_true",
        help="let clients load adapters from this machine's disk (/v1/load_lora_adapter)",
    )


def adapters_of(args: argparse.Namespace, models: Sequence[str]) -> Mapping[str, GivenAdapters]:
    """The adapters of each model that is served.

    Raises:
        RequestError: an adapter without a name, of a model that is not served, or of which of several is not said.
    """
    slots = args.adapter_slots or (_USUAL_SLOTS if args.allow_adapters else 0)
    empty = GivenAdapters(rank=args.adapter_rank, slots=slots)
    given = dict.fromkeys(models, empty) if slots else {}
    for text in args.adapters:
        name, separator, path = text.partition("=")
        if not separator or not name or not path:
            raise RequestError(f"--adapter {text}: expected NAME=PATH, or NAME=PATH:SCALE")
        model, _, own = name.rpartition(":")
        if not model and len(models) == 1:
            model = models[0]
        if model not in models:
            names = ", ".join(models) or "none"
            raise RequestError(f"--adapter {text}: which model is it for? MODEL:NAME=PATH says so; models are {names}")
        before = given.get(model, empty)
        given[model] = replace(before, paths=(*before.paths, parse_adapter(path, own)))
    return given
