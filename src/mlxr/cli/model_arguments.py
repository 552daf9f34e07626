"""The arguments that say which model to load, and where and how to run it."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, get_args

from mlxr.cli.argparse_types import model_name, token_count
from mlxr.cli.card_note import tell_of_card
from mlxr.cli.terminal import ProgressLine
from mlxr.cli.tier_options import tier_sizes
from mlxr.compiler.cli.parser import meant_choice
from mlxr.compiler.cli.spec_options import add_type_arguments
from mlxr.compiler.errors import ContextError, RequestError
from mlxr.compiler.spec.change import NO_CHANGES, Changes
from mlxr.loading.adapter_paths import adapter_paths
from mlxr.loading.find_model import MODEL_HELP, find_model
from mlxr.loading.load import load_found
from mlxr.loading.options import ExpertsOnCpu, LoadOptions
from mlxr.runtime.hosts.registry import AUTO, host_choices, hosts
from mlxr.runtime.memory.fitting_arena import GOOD_CONTEXT
from mlxr.runtime.memory.mmap_choice import Mmap

if TYPE_CHECKING:
    from mlxr.runtime.engine.model import Model

_OTHER_NAMES = {
    "gpu": "auto takes this machine's GPU, if there is one",
    "mps": "did you mean metal?",
    "apple": "did you mean metal?",
    "nvidia": "did you mean cuda?",
}
"""What people call hosts elsewhere."""


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which model to load, and where and how to run it."""
    parser.add_argument("model", type=model_name, metavar="MODEL", help=MODEL_HELP)
    add_load_arguments(parser)
    add_mmap_argument(parser)
    add_experts_argument(parser)


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say how to load a model, apart from which: those that the registry keeps."""
    parser.add_argument("--weights", metavar="W", help="a .gguf or .safetensors file, or a folder of them")
    parser.add_argument(
        "--tokenizer", metavar="T", help="a tokenizer.json or tokenizer.model, if it is not in or beside the weights"
    )
    add_host_arguments(parser)


def add_host_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say where and how to run a model."""
    where = ", ".join(f"{host.name} ({host.summary})" for host in hosts().values())
    add_host_argument(parser, f"where to run: {where}")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of host cpu (default: one for each core)")
    parser.add_argument(
        "--compute",
        choices=("exact", "fast"),
        help="exact: f32 activations; fast: 8-bit or bf16 ones where that is faster (default: what the "
        "spec says, else fast)",
    )
    add_type_arguments(parser)
    add_key_argument(parser)
    add_trust_argument(parser)


def add_host_argument(parser: argparse.ArgumentParser, about: str) -> None:
    """The argument that says where a model runs, which other programs call a device: their --host is our --address.

    Args:
        parser: where to add it.
        about: its help.
    """
    action = parser.add_argument("--host", default=AUTO, choices=host_choices(), help=about)

    def meant(word: str, choices: Iterable[str]) -> str:
        is_address = word == "localhost" or "." in word or ":" in word
        if is_address and "--address" in parser.format_usage():
            return f". That is where a model runs; where the server listens is --address {word}"
        if word.lower() in _OTHER_NAMES:
            return f"; {_OTHER_NAMES[word.lower()]}"
        return meant_choice(word, choices)

    action.meant = meant  # type: ignore[attr-defined]  # CommandParser looks there


def add_mmap_argument(parser: argparse.ArgumentParser) -> None:
    """The argument that says where packed weights are."""
    parser.add_argument(
        "--mmap",
        choices=get_args(Mmap),
        default="auto",
        help="whether host cpu maps quantised weights from a file of the cache, which it packs once: the model may be "
        "larger than memory, and the next load is faster. auto: where they do not fit into memory, where packing them "
        "takes seconds, and where the file is there (auto)",
    )


def add_experts_argument(parser: argparse.ArgumentParser) -> None:
    """The argument that says of how many layers the CPU computes the experts, beside a card."""
    parser.add_argument(
        "--experts-on-cpu",
        type=_auto_or_count,
        metavar="N|auto",
        help="have the CPU compute the chosen experts of the first N layers, beside a card (host cuda) whose memory is "
        "too small for all; auto: of as few layers as are needed for the rest to fit (default: the card has all)",
    )


def _auto_or_count(text: str) -> ExpertsOnCpu:
    if text == "auto":
        return "auto"
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of layers nor auto")
    return int(text)


def add_key_argument(parser: argparse.ArgumentParser) -> None:
    """The argument that lets a key of the model's files pass."""
    parser.add_argument(
        "--accept-key",
        action="append",
        default=[],
        metavar="KEY",
        help="assume that a key of config.json or of GGUF metadata that MLXR does not know changes nothing, instead of "
        "refusing the model; may be given several times",
    )


def add_trust_argument(parser: argparse.ArgumentParser) -> None:
    """The argument that lets an edited artifact run."""
    parser.add_argument(
        "--trust-artifact",
        action="store_true",
        help="run an artifact's code even if it is not what its spec compiles to: it has all your rights",
    )


def add_context_argument(parser: argparse.ArgumentParser, *, takes_specs: bool = True) -> None:
    """The arguments that say how long a sequence may be.

    Args:
        parser: where to add them.
        takes_specs: whether the command's model may be a spec, which has a context of its own.
    """
    default = "what the spec says; for .gguf files and folders " if takes_specs else ""
    parser.add_argument(
        "--context",
        type=token_count,
        metavar="N",
        help=f"longest sequence in tokens, such as 8192 or 8k (default: {default}the model's own limit, or as "
        "much of it as memory that is free now has room for)",
    )
    parser.add_argument(
        "--force-context",
        action="store_true",
        help="allow a context that is longer than the model's own, beyond which it writes nonsense",
    )


def add_adapter_argument(parser: argparse.ArgumentParser) -> None:
    """The argument that names a LoRA adapter."""
    parser.add_argument(
        "--adapter",
        metavar="PATH[:SCALE]",
        help="a LoRA adapter to use: a folder of PEFT or mlx-lm, or a GGUF file; SCALE multiplies it",
    )


@contextmanager
def telling_of_force() -> Iterator[None]:
    """Adds to the error of a context that is too long which option of `add_context_argument` allows it."""
    try:
        yield
    except ContextError as error:
        raise ContextError(
            f"{error}. Beyond it a model writes nonsense; --force-context allows it all the same"
        ) from error


def load_model(args: argparse.Namespace, needed: Changes = NO_CHANGES, *, needs_text: bool = False) -> "Model":
    """Loads the model that the arguments name.

    Args:
        args: those of `add_model_arguments`, perhaps of `add_context_argument`, `add_speculation_arguments` and
            `add_tier_arguments`.
        needed: what the command itself needs; context, compute and types come from the arguments.
        needs_text: whether the command can do nothing without a tokenizer.

    Raises:
        MlxrError: it cannot be found, compiled or loaded.
    """
    changes = changes_of(args, needed)
    with ProgressLine() as line, telling_of_force() if hasattr(args, "force_context") else nullcontext():

        def show(what: str, done: int, total: int) -> None:
            verb = "preparing" if what == "steps" else "loading"
            line.show(f"{verb} {what} {100 * done // max(1, total)} %")

        options = LoadOptions(
            args.weights,
            args.tokenizer,
            args.host,
            args.threads,
            changes,
            tiers=tier_sizes(args),
            draft=getattr(args, "draft", None),
            prompt_lookup=getattr(args, "prompt_lookup", False),
            mtp=getattr(args, "mtp", "off"),
            adapters=adapter_paths(getattr(args, "adapter", None)),
            needs_text=needs_text,
            mmap=getattr(args, "mmap", "auto"),
            experts_on_cpu=getattr(args, "experts_on_cpu", None),
            progress=show,
        )
        found = find_model(args.model, options)
        model = load_found(found)
    tell_of_card(found.options.host, model.host.name)
    if model.limit.is_cut and model.limit.tokens < GOOD_CONTEXT:
        print(f"note: {model.limit}", file=sys.stderr)
    return model


def changes_of(args: argparse.Namespace, needed: Changes = NO_CHANGES) -> Changes:
    """The changes to a model's spec that arguments ask for; `needed` as for `load_model`.

    Raises:
        RequestError: a context of no token.
    """
    context = getattr(args, "context", None)
    if context is not None and context < 1:
        raise RequestError(f"--context is {context}; expected at least 1")
    return Changes(
        context,
        needed.needed_context,
        needed.sequences,
        args.compute,
        args.activations,
        args.kv,
        tuple(args.accept_key),
        getattr(args, "force_context", False),
        deterministic=args.deterministic,
        trust_artifact=args.trust_artifact,
    )
