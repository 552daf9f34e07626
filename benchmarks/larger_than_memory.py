"""Packed weights in a file: what loading costs, whether steps are as fast, and models larger than memory.

    python benchmarks/larger_than_memory.py FILE|SHAPE[:LAYERS] [--format q4_k_m] [--memory 2.5GiB] [--tokens 24]

FILE is a model; SHAPE the name of a published shape (peers/shape_files.py), of which a file with random weights is
made.
Without `--memory`: seconds of a load that packs into memory, of the one that makes the file, and of the next one, each
in a process of its own, with the weight file in the system's cache; then the fastest step and the fastest prompt of 256
tokens in one process that has the model twice, in memory and mapped, in turns.

With `--memory`, the model runs in a memory control group of that size (version 1 or 2, which needs the right to make
one), once reading ahead and once not, after its pages were dropped: tokens a second as predicted and as measured, and
bytes that a token read. Tokens are the first ones of prompts of one random token, because what a model of random
weights goes on with chooses the same experts again and again.
"""

import argparse
import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from peers.shape_files import SHAPES
from peers.shape_writer import write_shape

_GROUPS = Path("/sys/fs/cgroup")
_VOCAB = 30000
_WARM = 2


def main() -> int:
    """Measures and prints."""
    args = _arguments()
    if args.child:
        print(json.dumps(_CHILDREN[args.child](args)))
        return 0
    with _folder(args) as folder:
        name, _, layers = args.model.partition(":")
        path = Path(args.model)
        if name in SHAPES:
            path = write_shape(name, args.format, folder, int(layers) if layers else None)
        if args.memory:
            _limited(path, args)
        else:
            _whole(path, args)
    return 0


@contextlib.contextmanager
def _folder(args: argparse.Namespace) -> Iterator[Path]:
    """Where files are; the cache is there, too."""
    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["MLXR_CACHE_DIR"] = str(folder / "cache")
    yield folder


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time packed weights that are mapped.")
    parser.add_argument("model", help=f"a file, or one of {', '.join(SHAPES)}, with :LAYERS")
    parser.add_argument("--format", default="q4_k_m", help="of a shape (q4_k_m)")
    parser.add_argument("--memory", metavar="SIZE", help="of the control group, such as 2.5GiB")
    parser.add_argument("--tokens", type=int, default=24, help="of a figure (24)")
    parser.add_argument("--turns", type=int, default=5, help="of steps in memory and mapped (5)")
    parser.add_argument("--folder", default="/tmp/mlxr-larger", help="where files are kept (/tmp/mlxr-larger)")
    parser.add_argument("--child", choices=_CHILDREN, help=argparse.SUPPRESS)
    parser.add_argument("--mmap", default="auto", help=argparse.SUPPRESS)
    parser.add_argument("--ahead", choices=("yes", "no"), default="yes", help=argparse.SUPPRESS)
    return parser.parse_args()


def _whole(path: Path, args: argparse.Namespace) -> None:
    _child(path, args, "load", "off")  # compiles the model, and brings the weight file into the system's cache
    for panels in _panels():
        panels.unlink()
    print("| load | seconds |\n|---|---|")
    for what, mmap in (("packs into memory", "off"), ("packs, and makes the file", "on"), ("maps the file", "on")):
        print(f"| {what} | {_child(path, args, 'load', mmap)['seconds']:.2f} |", flush=True)
    told = _child(path, args, "steps", "on")
    print("\n| work | in memory | mapped | ratio |\n|---|---|---|---|")
    for what, (memory, mapped) in told.items():
        print(f"| {what} | {memory:.1f} | {mapped:.1f} | {mapped / memory:.2f} x |")


def _limited(path: Path, args: argparse.Namespace) -> None:
    _child(path, args, "load", "on")
    print("| reads ahead | predicted tok/s | tok/s | MB read by a token |\n|---|---|---|---|")
    for ahead in ("yes", "no"):
        for panels in _panels():
            _drop(panels)
        with _group(args.memory) as procs:
            told = _child(path, args, "tokens", "auto", "--ahead", ahead, group=procs)
        print(f"| {ahead} | {told['predicted']} | {told['rate']:.2f} | {told['megabytes']:.0f} |", flush=True)


def _panels() -> list[Path]:
    return list((Path(os.environ["MLXR_CACHE_DIR"]) / "packed").glob("*.panels"))


def _drop(path: Path) -> None:
    with path.open("rb") as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def _group(memory: str) -> Iterator[Path]:
    """A control group that may use so much memory; gives the file that takes processes into it."""
    first = _GROUPS / "memory" if (_GROUPS / "memory").is_dir() else _GROUPS
    folder = first / f"mlxr-bench-{os.getpid()}"
    try:
        folder.mkdir()
        limit = "memory.limit_in_bytes" if first.name == "memory" else "memory.max"
        (folder / limit).write_text(str(_bytes(memory)))
    except OSError as error:
        raise SystemExit(f"no memory control group can be made here: {error}") from error
    try:
        yield folder / "cgroup.procs"
    finally:
        folder.rmdir()


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([\d.]+)\s*GiB", text)
    if not found:
        raise SystemExit(f"--memory is {text}, expected for example 2.5GiB")
    return int(float(found[1]) * (1 << 30))


def _child(
    path: Path, args: argparse.Namespace, work: str, mmap: str, *more: str, group: Path | None = None
) -> dict[str, Any]:
    command = [sys.executable, __file__, str(path), "--child", work, "--mmap", mmap, *more]
    command += ["--tokens", str(args.tokens), "--turns", str(args.turns)]

    def enter() -> None:
        if group is not None:
            group.write_text(str(os.getpid()))

    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, preexec_fn=enter)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def _load_seconds(args: argparse.Namespace) -> dict[str, float]:
    start = time.perf_counter()
    with _loaded(args.model, args.mmap):
        return {"seconds": time.perf_counter() - start}


def _steps(args: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """The fastest step and prompt of each, since others may use the machine; the models take turns."""
    rng = np.random.default_rng(0)
    fastest = {kind: [float("inf"), float("inf")] for kind in ("off", "on")}
    with _loaded(args.model, "off") as memory, _loaded(args.model, "on") as mapped:
        for _ in range(args.turns):
            for kind, model in (("off", memory), ("on", mapped)):
                ids = [int(i) for i in rng.integers(0, _VOCAB, 256)]
                start = time.perf_counter()
                times = [start]
                for _event in model.start([ids], max_tokens=args.tokens + 1, ignore_eos=True):
                    times.append(time.perf_counter())
                prompt, *steps = np.diff(times)
                fastest[kind] = [min(fastest[kind][0], *steps), min(fastest[kind][1], prompt)]
    (step, prompt), (mapped_step, mapped_prompt) = fastest["off"], fastest["on"]
    return {
        "tokens a second": (1 / step, 1 / mapped_step),
        "prompts of 256 a minute": (60 / prompt, 60 / mapped_prompt),
    }


def _tokens(args: argparse.Namespace) -> dict[str, Any]:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("mlxr").addHandler(handler)
    rng = np.random.default_rng(0)
    with _loaded(args.model, "auto") as model:
        found = re.search(r"([\d.e+]+) tok/s predicted", " ".join(said))
        if args.ahead == "no":
            model.host._running.read_ahead(on=False)
        for count in (_WARM * args.tokens, args.tokens):
            read, start = _read_bytes(), time.perf_counter()
            for token in rng.integers(0, _VOCAB, count):
                list(model.start([[int(token)]], max_tokens=1, ignore_eos=True))
        seconds = time.perf_counter() - start
        return {
            "predicted": found[1] if found else "-",
            "rate": args.tokens / seconds,
            "megabytes": (_read_bytes() - read) / 1e6 / args.tokens,
        }


def _read_bytes() -> int:
    """What this process had the disk read."""
    return int(re.findall(r"read_bytes: (\d+)", Path("/proc/self/io").read_text("utf-8"))[0])


def _loaded(path: str, mmap: Any) -> Any:
    import mlxr

    return mlxr.load(path, host="cpu", mmap=mmap, changes=mlxr.Changes(context=2048))


_CHILDREN = {"load": _load_seconds, "steps": _steps, "tokens": _tokens}

if __name__ == "__main__":
    sys.exit(main())
