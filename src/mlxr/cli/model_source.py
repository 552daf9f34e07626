"""What MODEL means on the command line: an artifact, a spec, a bundled model's name, or a model's own files."""

import argparse
import hashlib
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlxr.cli.streams import ProgressLine
from mlxr.compiler.artifact import Artifact, Chip, ModelSpec, load_artifact
from mlxr.compiler.errors import MlxrError, RequestError, WeightsError
from mlxr.compiler.importers.imported import DEFAULT_CONTEXT, ImportOptions
from mlxr.compiler.spec.catalog import bundled_specs, find_spec
from mlxr.compiler.spec.load import dump_spec, load_spec, parse_spec
from mlxr.compiler.version import VERSION
from mlxr.runtime.cache_folder import cache_folder
from mlxr.runtime.hosts.names import HOST_NAMES

if TYPE_CHECKING:
    from mlxr.runtime.model import Model

MODEL_HELP = "an artifact folder, a spec file, a bundled model's name, a .gguf file, or a Hugging Face folder"


@dataclass(frozen=True)
class Changes:
    """What options change of MODEL's spec.

    Attributes:
        context: longest sequence; None: as the spec says, or the importer.
        needed_context: of a model that is imported, at least this.
        sequences: at least so many at once.
        compute: None: as the spec says.
        cache_dtype: element type of the cache; None: as the spec says, or the importer.
    """

    context: int | None = None
    needed_context: int = 1
    sequences: int = 1
    compute: Literal["exact", "fast"] | None = None
    cache_dtype: Literal["f32", "f16", "bf16", "q8"] | None = None


NO_CHANGES = Changes()


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which model to load, and where and how to run it."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--weights", metavar="W", help="a .gguf or .safetensors file, or a folder of them")
    parser.add_argument(
        "--tokenizer", metavar="T", help="a tokenizer.json or tokenizer.model, if it is not in or beside the weights"
    )
    parser.add_argument(
        "--host",
        default="auto",
        choices=HOST_NAMES,
        help="where to run: metal (Apple silicon), cuda (NVIDIA GPUs), cpu (C made for this CPU), sim (the Metal "
        "kernels, checked, on any CPU), reference (MLX ops)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of host cpu (one for each core)")
    parser.add_argument(
        "--compute",
        choices=("exact", "fast"),
        help="exact: f32 activations; fast: 8-bit or bf16 ones where that is faster (as the spec says, else fast)",
    )


def add_context_argument(parser: argparse.ArgumentParser) -> None:
    """The argument that says how long a sequence may be."""
    parser.add_argument(
        "--context",
        type=int,
        metavar="N",
        help=f"longest sequence (as the spec says; of .gguf files and folders the model's own, at most "
        f"{DEFAULT_CONTEXT}, because the whole cache is allocated)",
    )


def add_cache_argument(parser: argparse.ArgumentParser) -> None:
    """The argument that says in which type keys and values are kept."""
    parser.add_argument(
        "--kv",
        choices=("f32", "f16", "bf16", "q8"),
        help="element type of the cache (as the spec says; of .gguf files and folders f16, of f32 weights f32)",
    )


def load_model(args: argparse.Namespace, needed: Changes = NO_CHANGES) -> "Model":
    """The model that the arguments name, loaded.

    Args:
        args: of `add_model_arguments`, and perhaps of `add_context_argument` and `add_cache_argument`.
        needed: what the command itself must have; context, compute and cache are those of the arguments.

    Raises:
        MlxrError: it cannot be found, compiled or loaded.
    """
    from mlxr.runtime.model import Model  # noqa: PLC0415 (loads MLX: only for commands that run a model)

    context = getattr(args, "context", None)
    if context is not None and context < 1:
        raise RequestError(f"--context is {context}; expected at least 1")
    changes = Changes(context, needed.needed_context, needed.sequences, args.compute, getattr(args, "kv", None))
    artifact, bundled = resolve_artifact(args.model, changes, _chip_here(args.host))
    weights = args.weights or bundled
    if weights is None:
        raise WeightsError(f"{args.model} comes without weights: name them with --weights FILE")
    with ProgressLine() as line:

        def show(what: str, done: int, total: int) -> None:
            line.show(f"loading {what} {100 * done // max(1, total)} %")

        return Model(artifact, weights, host=args.host, tokenizer=args.tokenizer, threads=args.threads, progress=show)


def _chip_here(host: str) -> Chip | None:
    """The chip that a host runs on, where its launch geometry depends on it and it is known."""
    from mlxr.runtime.hosts.select import resolve_host  # noqa: PLC0415 (loads MLX: only for commands that run a model)

    if resolve_host(host) not in ("metal", "cuda"):
        return None
    from mlxr.compiler.chips.catalog import find_chip_of_device  # noqa: PLC0415 (only where there is a GPU)
    from mlxr.tuning.pieces import device_name  # noqa: PLC0415

    return find_chip_of_device(device_name())


def resolve_artifact(
    name: str, changes: Changes = NO_CHANGES, chip: Chip | None = None
) -> tuple[Artifact, Path | None]:
    """The artifact of MODEL (compiled now or found in the cache), and the weights that belong to it, if any.

    An artifact that is not as the changes ask is compiled again, from its own spec and for its own chip.

    Args:
        name: MODEL.
        changes: to its spec.
        chip: whose launch geometry to take where there is no artifact yet; None: one for all.

    Raises:
        MlxrError: there is no such model, or it cannot be compiled with these changes.
    """
    path = Path(name)
    if name not in bundled_specs():
        from mlxr.cli.imported_model import import_model, is_model_file  # noqa: PLC0415 (reads GGUF: only when needed)

        if is_model_file(path):
            options = ImportOptions(
                changes.context,
                changes.needed_context,
                changes.sequences,
                changes.compute or "fast",
                changes.cache_dtype,
            )
            spec, weights = import_model(path, options)
            return _cached(spec, chip), weights
        if path.is_dir():
            artifact = load_artifact(path)
            spec = _changed(artifact.spec, changes)
            return (artifact if spec == artifact.spec else _cached(spec, artifact.chip)), None
    spec_path = find_spec(name)
    spec = load_spec(spec_path)
    bundled = spec_path.parent / f"{spec.name}-q8_0.gguf"
    return _cached(_changed(spec, changes), chip), bundled if bundled.is_file() else None


def _changed(spec: ModelSpec, changes: Changes) -> ModelSpec:
    """The spec with the changes that were asked for, checked anew."""
    model, cache = spec.model, spec.cache
    if changes.context is not None:
        model = model.model_copy(update={"context": changes.context})
    if changes.sequences > cache.max_sequences:
        cache = cache.model_copy(update={"max_sequences": changes.sequences})
    if changes.cache_dtype is not None:
        cache = cache.model_copy(update={"dtype": changes.cache_dtype})
    update = {"model": model, "cache": cache, "compute": changes.compute or spec.compute}
    changed = spec.model_copy(update=update)
    return spec if changed == spec else parse_spec(dump_spec(changed), f"{spec.name}, as the options change it")


def _cached(spec: ModelSpec, chip: Chip | None = None) -> Artifact:
    """The artifact from the cache, else compiled; a cache that cannot be used is worth a note, no more."""
    geometry = chip.model_dump_json() if chip else ""
    key = hashlib.sha256(f"{_compiler_digest()}\n{dump_spec(spec)}\n{geometry}".encode()).hexdigest()[:16]
    entry = f"{spec.name}-{key}"
    try:
        return load_artifact(cache_folder("artifacts") / entry)
    except (MlxrError, OSError):
        from mlxr.compiler.driver import compile_spec  # noqa: PLC0415 (slow to import: not for what is cached)

        artifact = compile_spec(spec, chip=chip).artifact
    try:
        artifact.write(cache_folder("artifacts") / entry)
    except (MlxrError, OSError) as error:
        print(f"note: not cached: {error}", file=sys.stderr)
    return artifact


def _compiler_digest() -> str:
    """A hash of all that decides what a spec compiles to: after a change of a template the cache holds nothing."""
    digest = hashlib.sha256(VERSION.encode())
    for package, pattern in (
        ("mlxr.compiler", "*.py"),
        ("mlxr.compiler", "chips/*.yaml"),
        ("mlxr.templates", "*.jinja"),
        ("mlxr.templates", "*.h"),
        ("mlxr.models", "families/*"),
    ):
        folder = Path(str(resources.files(package)))
        for path in sorted(folder.rglob(pattern)):
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
