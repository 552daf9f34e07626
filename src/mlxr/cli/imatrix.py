"""`mlxr imatrix`: makes an importance matrix, with which `mlxr quantize` loses less."""

import argparse
from pathlib import Path

from mlxr.cli.argparse_types import token_count
from mlxr.cli.model_arguments import add_model_arguments, load_model
from mlxr.cli.terminal import ProgressLine
from mlxr.compiler.errors import RequestError
from mlxr.compiler.spec.change import Changes
from mlxr.compiler.text import counted


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "imatrix",
        help="measure which columns of weights matter",
        description="Make an importance matrix: how large what each column of a weight is multiplied with is in a "
        "text. With it, `mlxr quantize --imatrix` loses less, and so does llama-quantize, which reads it, too. The "
        "model runs on host reference, with its weights in 32 bits.",
    )
    add_model_arguments(parser)
    parser.set_defaults(host="reference")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="the text, UTF-8")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.gguf", help="where to write it")
    parser.add_argument(
        "--context", dest="window", type=token_count, default=512, metavar="N", help="tokens of a window (default: 512)"
    )
    parser.add_argument("--tokens", type=int, metavar="N", help="only the first N tokens of the text (default: all)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from mlxr.bench.text_windows import read_text, text_windows  # noqa: PLC0415 (as all of these: loads MLX)
    from mlxr.output_file import check_not_read, check_output  # noqa: PLC0415
    from mlxr.quantise.collect_importance import collect_importance  # noqa: PLC0415
    from mlxr.quantise.importance import write_importance  # noqa: PLC0415

    for name, value in (("context", args.window), ("tokens", args.tokens)):
        if value is not None and value < 1:
            raise RequestError(f"--{name} is {value}; expected at least 1")
    if args.host != "reference":
        raise RequestError(f"--host is {args.host}; only host reference tells what weights are multiplied with")
    check_output(args.output)
    check_not_read(args.output, filter(Path.is_file, [Path(args.model)]))
    text = read_text(args.text)
    with load_model(args, Changes(needed_context=args.window), needs_text=True) as model:
        tokenizer = model.require_tokenizer()
        ids = tokenizer.encode(text, add_special=False)[: args.tokens]
        windows = text_windows(ids, args.window, begin=tokenizer.bos_id if tokenizer.adds_bos else None)
        with ProgressLine() as line:
            sums = collect_importance(model, windows, lambda done, total: line.show(f"window {done} of {total}"))
        write_importance(args.output, sums, str(args.text), len(windows), args.window)
    tokens = sum(len(window.tokens) for window in windows)
    print(f"{args.output}: {counted(len(sums), 'tensor')}, {counted(tokens, 'token')}")
    return 0
