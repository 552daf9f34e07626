"""What MODEL means on the command line: an artifact folder, a spec file, or a bundled model's name."""

import argparse
import hashlib
import sys
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from mlxr.compiler.artifact import Artifact, ModelSpec, load_artifact
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import MlxrError, WeightsError
from mlxr.compiler.spec.catalog import bundled_specs, find_spec
from mlxr.compiler.spec.load import dump_spec, load_spec
from mlxr.compiler.version import VERSION
from mlxr.runtime.cache_folder import cache_folder
from mlxr.runtime.hosts.names import HOST_NAMES

if TYPE_CHECKING:
    from mlxr.runtime.model import Model


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which model to load, and where to run it."""
    parser.add_argument("model", metavar="MODEL", help="an artifact folder, a spec file, or a bundled model's name")
    parser.add_argument("--weights", metavar="W", help="a .gguf or .safetensors file, or a folder of them")
    parser.add_argument("--tokenizer", metavar="T", help="a tokenizer.model, if it is not in or beside the weights")
    parser.add_argument(
        "--host",
        default="auto",
        choices=HOST_NAMES,
        help="where to run: metal (Apple silicon), sim (the same kernels on any CPU), reference (MLX ops)",
    )


def load_model(args: argparse.Namespace) -> "Model":
    """The model that the arguments name, loaded.

    Raises:
        MlxrError: it cannot be found, compiled or loaded.
    """
    from mlxr.runtime.model import Model  # noqa: PLC0415 (loads MLX: only for commands that run a model)

    artifact, bundled = resolve_artifact(args.model)
    weights = args.weights or bundled
    if weights is None:
        raise WeightsError(f"{args.model} comes without weights: name them with --weights FILE")
    show = _Progress()
    try:
        return Model(artifact, weights, host=args.host, tokenizer=args.tokenizer, progress=show)
    finally:
        show.clear()


def resolve_artifact(name: str) -> tuple[Artifact, Path | None]:
    """The artifact of MODEL (compiled now or found in the cache), and the weights bundled with it, if any."""
    path = Path(name)
    if name not in bundled_specs() and path.is_dir():
        return load_artifact(path), None
    spec_path = find_spec(name)
    spec = load_spec(spec_path)
    key = hashlib.sha256(f"{_compiler_digest()}\n{dump_spec(spec)}".encode()).hexdigest()[:16]
    bundled = spec_path.parent / f"{spec.name}-q8_0.gguf"
    return _cached(f"{spec.name}-{key}", spec), bundled if bundled.is_file() else None


def _cached(entry: str, spec: ModelSpec) -> Artifact:
    """The artifact from the cache, else compiled; a cache that cannot be used is worth a note, no more."""
    try:
        return load_artifact(cache_folder("artifacts") / entry)
    except (MlxrError, OSError):
        artifact = compile_spec(spec).artifact
    try:
        artifact.write(cache_folder("artifacts") / entry)
    except (MlxrError, OSError) as error:
        print(f"note: not cached: {error}", file=sys.stderr)
    return artifact


def _compiler_digest() -> str:
    """A hash of all that decides what a spec compiles to: after a change of a template the cache holds nothing."""
    digest = hashlib.sha256(VERSION.encode())
    for package, pattern in (("mlxr.compiler", "*.py"), ("mlxr.templates", "*.jinja"), ("mlxr.models", "families/*")):
        folder = Path(str(resources.files(package)))
        for path in sorted(folder.rglob(pattern)):
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


class _Progress:
    """A line on a terminal's standard error that says what is being prepared."""

    def __init__(self) -> None:
        self._shown = False
        self._terminal = sys.stderr.isatty()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._terminal:
            share = 100 * done // max(1, total)
            print(f"\r\x1b[Kloading {what} {share} %", end="", file=sys.stderr, flush=True)
            self._shown = True

    def clear(self) -> None:
        """Takes the line away."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
