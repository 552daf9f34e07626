"""`mlxr import`: writes the spec of a model's own files, to read, edit and compile."""

import argparse
import sys
from pathlib import Path

from mlxr.cli.model_arguments import add_context_argument, add_key_argument, telling_of_force
from mlxr.compiler.cli.spec_options import add_type_arguments
from mlxr.compiler.errors import RequestError, SpecError
from mlxr.output_file import write_output


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "import",
        help="write the spec of a model's own files",
        description="Write the spec of the model in a .gguf file, or in a Hugging Face or mlx-lm folder: to read, "
        "edit, and compile with mlxr-compile.",
    )
    parser.add_argument(
        "model", type=Path, metavar="MODEL", help="a .gguf file, a folder with a config.json, or a registered name"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="SPEC.yaml", help="where to write it (default: standard output)"
    )
    parser.add_argument(
        "--compute",
        choices=("exact", "fast"),
        default="fast",
        help="how the spec says to compute; exact: f32 activations; fast: 8-bit or bf16 ones where that is faster "
        "(default: fast)",
    )
    add_context_argument(parser, takes_specs=False)
    add_type_arguments(parser, takes_specs=False)
    parser.add_argument(
        "--sequences", type=int, default=1, metavar="N", help="most sequences at once, each with a cache (default: 1)"
    )
    add_key_argument(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from mlxr.compiler.importers.imported import ImportOptions  # noqa: PLC0415
    from mlxr.compiler.spec.catalog import bundled_specs  # noqa: PLC0415
    from mlxr.compiler.spec.load import dump_spec  # noqa: PLC0415
    from mlxr.compiler.spec.other_files import other_than_a_model  # noqa: PLC0415
    from mlxr.loading.imported_model import import_model, is_model_file  # noqa: PLC0415 (reads GGUF: only when needed)
    from mlxr.registry.registry import Registry  # noqa: PLC0415

    if args.context is not None and args.context < 1:
        raise RequestError(f"--context is {args.context}; expected at least 1")
    if args.sequences < 1:
        raise RequestError(f"--sequences is {args.sequences}; expected at least 1")
    if not args.model.exists() and (registered := Registry().get(str(args.model))) is not None:
        args.model = registered.source
    if not is_model_file(args.model):
        if str(args.model) in bundled_specs():
            raise SpecError(f"{args.model} is a bundled spec already: {bundled_specs()[str(args.model)]}")
        raise SpecError(other_than_a_model(args.model))
    options = ImportOptions(
        context=args.context,
        compute=args.compute,
        max_sequences=args.sequences,
        activation_dtype=args.activations,
        cache_dtype=args.kv,
        accepted_keys=tuple(args.accept_key),
        force_context=args.force_context,
        deterministic=args.deterministic,
    )
    with telling_of_force():
        spec, weights = import_model(args.model, options)
    text = f"# Imported from {weights.name!a}: mlxr-compile makes an artifact of it.\n{dump_spec(spec)}"
    if args.output is None:
        print(text, end="")
        return 0
    write_output(args.output, text.encode())
    print(
        f"{args.output}: {spec.name}, family {spec.model.tensor_names}, weights {spec.weights.default}", file=sys.stderr
    )
    return 0
