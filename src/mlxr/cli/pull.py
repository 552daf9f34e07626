"""`mlxr pull`: fetches a model from the hub."""

import argparse
from pathlib import Path

from mlxr.cli.add import options_of, print_added
from mlxr.cli.model_arguments import add_context_argument, add_load_arguments, telling_of_force

_ABOUT = (
    "Fetch a model from the hub, and give it a name, as mlxr add does. Only files that MLXR reads are fetched: weights "
    "as safetensors or GGUF, config.json, tokenizer and templates; never code, and no pickles. They go into "
    "huggingface_hub's cache, and are checked by their hashes. Of several GGUF models it takes Q4_K_M if that fits "
    "into the memory that is free, else another one, and says which and why; safetensors that do not fit are refused, "
    "unless FILE is safetensors. A fetch that was interrupted goes on "
    "where it ended. Where a token is needed, it is the one of `hf auth login` or HF_TOKEN."
)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("pull", help="fetch a model from the hub", description=_ABOUT)
    parser.add_argument(
        "model",
        metavar="ORG/REPO[@REVISION][:FILE]",
        help="a repository; a branch, a tag or a commit of it (default: main); and which of its GGUF models, by any "
        "part of its name, where it has several (default: the best one that fits)",
    )
    parser.add_argument("--name", metavar="NAME", help="its name here (default: what was given for it)")
    parser.add_argument("--replace", action="store_true", help="take the name from the model that has it")
    parser.add_argument(
        "--template", type=Path, metavar="FILE", help="a Jinja2 chat template to use instead of its own"
    )
    add_load_arguments(parser)
    add_context_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from mlxr.cli.pull_progress import pull_progress  # noqa: PLC0415 (slow to import: not for the help)
    from mlxr.loading.pull_model import pull_model  # noqa: PLC0415

    options = options_of(args)
    with pull_progress() as progress, telling_of_force():
        model = pull_model(args.model, args.name, options=options, replaces=args.replace, progress=progress)
    print_added(model, as_object=args.json)
    return 0
