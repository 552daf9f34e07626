"""`mlxr quantize`: writes a model in another format."""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mlxr.cli.argparse_types import model_name, token_count
from mlxr.cli.model_arguments import add_key_argument
from mlxr.cli.terminal import ProgressLine
from mlxr.cli.tier_options import size_argument
from mlxr.compiler.errors import RequestError
from mlxr.compiler.text import printable
from mlxr.loading.find_model import find_model

if TYPE_CHECKING:
    from mlxr.quantise.fit_formats import Goal
    from mlxr.quantise.gguf_output import Progress
    from mlxr.quantise.requantise import Quantisation

_ABOUT = (
    "Write a model in another format, one tensor at a time. FILE.gguf gets the bytes that llama-quantize writes, with "
    "all metadata and the tokenizer, of a GGUF file or of a folder's model; FOLDER the numbers that mlx_lm.convert "
    "writes. The result appears whole or not at all."
)
_FORMATS = (
    "of a GGUF file q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, q4_k_s, q4_1, q4_0, iq4_nl, iq4_xs, mxfp4 (of "
    "experts; else q8_0), q3_k_l, q3_k_m, q3_k_s, q2_k, q2_k_s, bf16, f16 or f32; of a folder affine2, affine3, "
    "affine4, affine5, affine6, affine8, mxfp4, bf16, f16 or f32"
)
_WISHES = ("tensor_type", "output_tensor_type", "token_embedding_type", "pure")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("quantize", help="write a model in another format", description=_ABOUT)
    parser.add_argument(
        "model",
        type=model_name,
        metavar="MODEL",
        help="a .gguf file, a folder, or a bundled or registered model's name",
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE.gguf|FOLDER", help="where to write it"
    )
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--format", metavar="FORMAT", help=_FORMATS)
    wanted.add_argument(
        "--budget",
        type=size_argument,
        metavar="SIZE",
        help="choose each tensor's format: the least divergence from the original in a GGUF file of this size, such as "
        "3.2GiB",
    )
    wanted.add_argument(
        "--speed",
        type=_rate,
        metavar="TOKENS/S",
        help="the same, with which --chip decodes one sequence at this speed, such as 30tok/s, as predicted",
    )
    parser.add_argument("--chip", metavar="NAME", help="of --speed: m4, m4-max, h200, ... (mlxr inspect --chip)")
    parser.add_argument(
        "--context", type=token_count, default=512, metavar="N", help="of --speed: tokens so far (default: 512)"
    )
    parser.add_argument("--text", type=Path, metavar="FILE", help="of --budget and --speed: the text to measure on")
    parser.add_argument(
        "--tokens", type=int, default=1024, metavar="N", help="of --text, tokens that are read at most (default: 1024)"
    )
    parser.add_argument(
        "--group-size",
        type=int,
        choices=(32, 64, 128),
        metavar="N",
        help="neighbours that share a scale in affine formats: 32, 64 or 128 (default: 64)",
    )
    parser.add_argument(
        "--imatrix",
        type=Path,
        metavar="FILE",
        help="an importance matrix (of llama-imatrix, GGUF or .dat): how much errors in each column count",
    )
    parser.add_argument(
        "--allow-requantize",
        action="store_true",
        help="quantise tensors again that are quantised already, which loses more than quantising the original does",
    )
    parser.add_argument(
        "--tensor-type",
        action="append",
        default=[],
        metavar="NAME=FORMAT",
        help="the format of all tensors whose GGUF name a regular expression matches; may be given several times",
    )
    parser.add_argument("--output-tensor-type", metavar="FORMAT", help="the format of the output projection")
    parser.add_argument("--token-embedding-type", metavar="FORMAT", help="the format of the embeddings")
    parser.add_argument("--pure", action="store_true", help="the same format for all tensors, whatever the rules say")
    parser.add_argument("--threads", type=int, metavar="N", help="threads (default: one for each core)")
    add_key_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    return _write_gguf(args) if args.output.suffix.lower() == ".gguf" else _write_folder(args)


def _refuse(args: argparse.Namespace, options: Iterable[str], meant_for: str) -> None:
    """Refuses options that would change nothing."""
    for option in options:
        if getattr(args, option):
            raise RequestError(f"--{option.replace('_', '-')} is for {meant_for}")


@contextmanager
def _shown() -> "Iterator[Progress]":
    with ProgressLine() as line:

        def show(name: str, done: int, total: int) -> None:
            line.show(f"{100 * done // max(1, total)} % of {total / 1e6:.1f} MB: {name}")

        yield show


def _write_folder(args: argparse.Namespace) -> int:
    from mlxr.quantise.gguf_as_folder import gguf_as_folder  # noqa: PLC0415 (as all of these: loads MLX)
    from mlxr.quantise.mlx_folder import folder_content, mlx_format, write_mlx_folder  # noqa: PLC0415
    from mlxr.quantise.model_files import model_files  # noqa: PLC0415

    if args.format is None:
        raise RequestError(f"--budget and --speed are for GGUF files; {args.output} would be a folder")
    format = mlx_format(args.format.lower(), args.group_size)
    if format is None:
        raise RequestError(
            f"--format {args.format}: {args.output} would be a folder of mlx-lm's, which has affine2, affine3, "
            "affine4, affine5, affine6, affine8, mxfp4, bf16, f16 or f32; for other formats name a FILE.gguf"
        )
    _refuse(args, ("chip", "text", "imatrix", *_WISHES, "threads"), f"GGUF files; {args.output} would be a folder")
    source, keys = model_files(find_model(args.model)), tuple(args.accept_key)
    if source.is_dir():
        content = folder_content(source)
    else:
        content = gguf_as_folder(source, requantise=args.allow_requantize, accepted_keys=keys)
    with _shown() as show:
        write_mlx_folder(content, args.output, format, show)
    size = sum(path.stat().st_size for path in args.output.glob("*.safetensors"))
    print(json.dumps({"output": str(args.output), "bytes": size}) if args.json else f"{args.output}: {size:,} bytes")
    return 0


def _write_gguf(args: argparse.Namespace) -> int:
    from mlxr.output_file import check_not_read, check_output  # noqa: PLC0415 (as all of these: only if the command runs)
    from mlxr.quantise.fit_formats import fit_formats  # noqa: PLC0415
    from mlxr.quantise.folder_source import folder_source  # noqa: PLC0415
    from mlxr.quantise.model_files import model_files  # noqa: PLC0415
    from mlxr.quantise.requantise import chosen_formats, gguf_source, importance_gaps, write_quantised  # noqa: PLC0415

    _refuse(args, ("group_size",), f"folders; {args.output} would be a GGUF file")
    if args.format is None:
        _refuse(args, _WISHES, "--format; --budget and --speed choose the format of each tensor")
    else:
        _refuse(args, ("chip", "text"), "--budget and --speed")
    how = _how(args)
    check_output(args.output)
    path, keys = model_files(find_model(args.model)), tuple(args.accept_key)
    source = folder_source(path, keys) if path.is_dir() else gguf_source(path, keys)
    check_not_read(args.output, source.files)
    if how.importance is not None:
        how.importance.check_model(source.tensors)
    told: dict[str, float] = {}
    if args.format is None:
        with _shown() as show:
            fitted = fit_formats(source, _goal(args), how, show)
        how = fitted.how
        told = {"divergence": fitted.divergence} | ({} if fitted.speed is None else {"speed": fitted.speed})
    formats = chosen_formats(source, how)
    if gaps := importance_gaps(source, how, formats):
        print(f"note: {printable(gaps)}", file=sys.stderr)
    with _shown() as show:
        size = write_quantised(source, args.output, how, show)
    elements = sum(tensor.num_rows * tensor.columns for tensor in source.tensors.values())
    counts = {format: list(formats.values()).count(format) for format in dict.fromkeys(formats.values())}
    if args.json:
        shown = {"output": str(args.output), "bytes": size, "bits": 8 * size / elements, "tensors": counts}
        print(json.dumps(shown | told))
        return 0
    listed = ", ".join(f"{count} {format}" for format, count in sorted(counts.items(), key=lambda item: -item[1]))
    print(f"{args.output}: {size:,} bytes, {8 * size / elements:.2f} bits a weight; tensors: {listed}")
    if told:
        speed = f"; predicted for {args.chip}: {told['speed']:.1f} tokens/s" if "speed" in told else ""
        print(f"estimated divergence from the original: {told['divergence']:.5f} nats{speed}")
    return 0


def _goal(args: argparse.Namespace) -> "Goal":
    from mlxr.bench.text_windows import read_text  # noqa: PLC0415
    from mlxr.compiler.chips.catalog import find_chip  # noqa: PLC0415
    from mlxr.quantise.fit_formats import Goal  # noqa: PLC0415

    if args.text is None:
        raise RequestError("--budget and --speed need --text FILE, on which the cost of formats is measured")
    if (args.speed is None) != (args.chip is None):
        raise RequestError("--speed and --chip go together: the speed that this chip shall reach")
    if args.tokens < 64:
        raise RequestError(f"--tokens is {args.tokens}; expected at least 64")
    chip = None if args.chip is None else find_chip(args.chip)
    return Goal(args.budget, args.speed, chip, args.context, read_text(args.text), args.tokens)


def _rate(text: str) -> float:
    """Tokens a second: 30, 30tok/s or 30t/s."""
    number = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *(?:tok(?:ens)?/s|t/s)?", text.strip())
    if number is None or float(number[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a speed; expected one such as 30tok/s")
    return float(number[1])


def _how(args: argparse.Namespace) -> "Quantisation":
    from mlxr.quantise.block_quantiser import BLOCK_FORMATS  # noqa: PLC0415
    from mlxr.quantise.importance import read_importance  # noqa: PLC0415
    from mlxr.quantise.mixtures import ALIASES, FLOATS, MIXTURES, Wishes  # noqa: PLC0415
    from mlxr.quantise.requantise import Quantisation  # noqa: PLC0415

    def tensor_format(option: str, word: str | None) -> str:
        if word and word.lower() not in (*BLOCK_FORMATS, *FLOATS):
            known = ", ".join(sorted((*BLOCK_FORMATS, *FLOATS)))
            raise RequestError(f"{option}: {word!r} is not a format of a tensor; expected one of {known}")
        return (word or "").lower()

    given_format = args.format or "q4_k_m"  # --budget and --speed choose themselves
    name = ALIASES.get(given_format.lower(), given_format.lower())
    if name not in MIXTURES:
        raise RequestError(
            f"--format is {args.format!r}; expected one of {', '.join(MIXTURES)}, as {args.output} would be a GGUF file"
        )
    tensors = []
    for given in args.tensor_type:
        expression, _, word = given.rpartition("=")
        try:
            re.compile(expression)
        except re.error as error:
            raise RequestError(f"--tensor-type {given}: {expression!r} is not a regular expression: {error}") from error
        if not expression or not word:
            raise RequestError(f"--tensor-type is {given!r}; expected NAME=FORMAT, such as attn_v=q8_0")
        tensors.append((expression, tensor_format("--tensor-type", word)))
    wishes = Wishes(
        args.pure,
        tensor_format("--output-tensor-type", args.output_tensor_type),
        tensor_format("--token-embedding-type", args.token_embedding_type),
        tuple(tensors),
    )
    importance = None if args.imatrix is None else read_importance(args.imatrix)
    return Quantisation(MIXTURES[name], wishes, importance, requantise=args.allow_requantize, threads=args.threads)
