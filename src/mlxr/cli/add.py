"""`mlxr add`: registers a model under a name."""

import argparse
import json
from pathlib import Path

from mlxr.cli.model_arguments import add_context_argument, add_load_arguments, changes_of, telling_of_force
from mlxr.cli.shown_model import as_json, files_as_json
from mlxr.cli.terminal import ProgressLine
from mlxr.compiler.errors import RequestError
from mlxr.compiler.text import counted, size
from mlxr.loading.options import LoadOptions
from mlxr.registry.file_status import OK
from mlxr.registry.records import ModelRecord

_ABOUT = (
    "Give a model a name that works wherever MODEL is taken. Its files stay where they are; their sizes and hashes are "
    "noted, so that a change is noticed. What it compiles to, for mlxr run and for mlxr serve, is put into the cache. "
    "The other options are noted too, and hold whenever the name is used, unless that use says otherwise."
)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("add", help="give a model a name", description=_ABOUT)
    parser.add_argument(
        "model", metavar="PATH", help="a .gguf file, a Hugging Face folder, a spec file, or an artifact folder"
    )
    parser.add_argument(
        "--name", metavar="NAME", help="its name: letters, digits and . _ : @ - / (default: that of the file or folder)"
    )
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
    from mlxr.loading.add_model import add_model  # noqa: PLC0415 (slow to import: not for the help)

    with ProgressLine() as line, telling_of_force():

        def show(path: Path, done: int, total: int) -> None:
            line.show(f"hashing {path.name} {100 * done // max(1, total)} %")

        model = add_model(args.model, args.name, options=options_of(args), replaces=args.replace, progress=show)
    print_added(model, as_object=args.json)
    return 0


def options_of(args: argparse.Namespace) -> LoadOptions:
    """What the arguments of `add_load_arguments` and `add_context_argument`, and `--template`, say.

    Raises:
        RequestError: the context or the number of threads is not positive.
        TokenizerError: the template cannot be read.
    """
    from mlxr.runtime.tokenizer.template_files import read_template_file  # noqa: PLC0415 (slow to import)

    if args.threads is not None and args.threads < 1:
        raise RequestError(f"--threads is {args.threads}; expected at least 1")
    return LoadOptions(
        None if args.weights is None else Path(args.weights),
        None if args.tokenizer is None else Path(args.tokenizer),
        args.host,
        args.threads,
        changes_of(args),
        None if args.template is None else read_template_file(args.template),
    )


def print_added(model: ModelRecord, *, as_object: bool) -> None:
    """Says what was registered."""
    if as_object:
        print(json.dumps(as_json(model, OK) | {"files": files_as_json(model)}, indent=1))
    else:
        files = f"{counted(len(model.files), 'file')}, {size(model.size_bytes)}"
        print(f"added {model.name}: {model.source} ({files}); mlxr run {model.name}, or mlxr serve {model.name}")
