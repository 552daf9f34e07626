"""MLXR against sentence-transformers and llama.cpp: texts a second that become vectors, in turns, on the CPU.

    python benchmarks/embeddings.py FOLDER [--torch PYTHON] [--llama-server FILE --gguf MODEL.gguf] [--mlxr MODEL ...]

FOLDER is a sentence-transformers model, such as all-MiniLM-L6-v2. `--torch` is a Python with torch: the same steps as
sentence-transformers' `encode` (texts sorted by length, batches of 32, padded, mean of the rows, f32) or, where that is
installed, `encode` itself. llama-server gets lists by /v1/embeddings, over HTTP, of the length that suits it best. Each
turn runs every engine once over the same texts; figures are medians over turns, ratios to the first one's of the turn.
`--mlxr` names more models for MLXR, such as the same one in another format. On a machine that does something else, too,
`--cpu` takes the processor time of each engine's process in place of the time that passes, best with one thread.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

WORDS = (
    "the a of and to in is was for on that with as at by from it an be are this which or had not but his they were all"
    " one have new more two also who time first people world city river number water history music house country family"
    " story small large early later between under without because during through should could every other company"
)
LENGTHS = {"queries": (4, 16), "sentences": (12, 40), "passages": (60, 180)}
"""Words of the texts of each kind; a word is a token, and two are added."""
_BATCHES = (16, 64)
_PORT = 18431
_TORCH = Path(__file__).parent / "peers" / "with_transformers.py"
Embed = Callable[[Sequence[str]], tuple[float, float]]
"""Makes vectors of texts, and returns the seconds that it took, and those of its processor time."""


def main() -> int:
    """Measures and prints a table."""
    args = _arguments()
    with ExitStack() as stack:
        engines: dict[str, Embed] = {}
        for model in (args.folder, *args.mlxr):
            engines[f"MLXR, {Path(model).name}"] = stack.enter_context(_mlxr(model, args.threads, args.compute))
        if args.torch:
            engines["torch"] = stack.enter_context(_torch(args.torch, args.folder, args.threads))
        if args.llama_server:
            engines["llama.cpp"] = stack.enter_context(_llama(args.llama_server, args.gguf, args.threads))
        first, *others = engines
        print("| texts | " + " | ".join(engines) + " |\n|---|" + "---|" * len(engines))
        for kind, (least, most) in LENGTHS.items():
            texts = made_texts(args.texts, least, most)
            seconds = measured(engines, texts, args.turns, of_cpu=args.cpu)
            rates = {name: len(texts) / statistics.median(times) for name, times in seconds.items()}
            cells = [f"{rates[first]:,.0f}"]
            cells += [f"{rates[name]:,.0f} ({ratio(seconds[name], seconds[first]):.2f} x)" for name in others]
            print(f"| {kind} of {least} to {most} words | " + " | ".join(cells) + " |", flush=True)
    return 0


def made_texts(count: int, least: int, most: int) -> list[str]:
    """Texts of made-up sentences, the same each time."""
    rng, words = random.Random(most), WORDS.split()
    return [" ".join(rng.choices(words, k=rng.randint(least, most))) for _ in range(count)]


def measured(engines: dict[str, Embed], texts: Sequence[str], turns: int, *, of_cpu: bool) -> dict[str, list[float]]:
    """Seconds of each engine, turn by turn; the first turn warms up and does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(turns + 1):
        for name, embed in engines.items():
            took = embed(texts)[of_cpu]
            seconds[name] += [took] if turn else []
    return seconds


def ratio(others: Sequence[float], ours: Sequence[float]) -> float:
    """How many times as many texts a second we make: the median over turns."""
    return statistics.median(other / own for other, own in zip(others, ours, strict=True))


@contextmanager
def _mlxr(model: str, threads: int | None, compute: str) -> Iterator[Embed]:
    import mlxr

    changes = mlxr.Changes(compute=compute)
    with mlxr.load(model, host="cpu", threads=threads, changes=changes) as loaded:

        def embed(texts: Sequence[str]) -> tuple[float, float]:
            begin = time.perf_counter(), time.process_time()
            loaded.embed(texts)
            return time.perf_counter() - begin[0], time.process_time() - begin[1]

        yield embed


@contextmanager
def _torch(python: str, folder: str, threads: int | None) -> Iterator[Embed]:
    command = [python, str(_TORCH), folder, str(threads or 0)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None, "both are pipes"

        def embed(texts: Sequence[str]) -> tuple[float, float]:
            assert process.stdin is not None and process.stdout is not None, "both are pipes"
            process.stdin.write(json.dumps(texts) + "\n")
            process.stdin.flush()
            passed, worked = map(float, process.stdout.readline().split())
            return passed, worked

        try:
            yield embed
        finally:
            process.stdin.close()


@contextmanager
def _llama(program: str, gguf: str, threads: int | None) -> Iterator[Embed]:
    """The better of two sizes of requests, each of which is a list of texts that its slots share."""
    command = [program, "-m", gguf, "--embedding", "--port", str(_PORT), "-b", "4096", "-ub", "4096", "-np", "16"]
    command += ["-c", str(16 * 512), *(["-t", str(threads), "-tb", str(threads)] if threads else [])]
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _wait(process)
            best = _BATCHES[0], float("inf")
            for size in _BATCHES:
                _ask(made_texts(64, 12, 40), size)
                best = min(best, (size, _ask(made_texts(128, 12, 40), size)), key=lambda pair: pair[1])

            def embed(texts: Sequence[str]) -> tuple[float, float]:
                begin = _cpu_seconds(process.pid)
                return _ask(texts, best[0]), _cpu_seconds(process.pid) - begin

            yield embed
        finally:
            process.terminate()


def _wait(process: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise SystemExit(f"llama-server ended with code {process.returncode}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{_PORT}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("llama-server does not answer")


def _cpu_seconds(pid: int) -> float:
    """Of a process and its threads, as Linux tells it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ask(texts: Sequence[str], size: int) -> float:
    begin = time.perf_counter()
    for first in range(0, len(texts), size):
        body = json.dumps({"model": "x", "input": texts[first : first + size], "encoding_format": "base64"}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{_PORT}/v1/embeddings", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            answer.read()
    return time.perf_counter() - begin


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare MLXR with sentence-transformers and llama.cpp.")
    parser.add_argument("folder", help="a sentence-transformers model")
    parser.add_argument("--mlxr", nargs="*", default=[], metavar="MODEL", help="more models for MLXR")
    parser.add_argument("--torch", metavar="PYTHON", help="a Python that has torch and transformers")
    parser.add_argument("--llama-server", metavar="FILE", help="llama.cpp's program of this name")
    parser.add_argument("--gguf", help="the model as llama.cpp takes it")
    parser.add_argument("--compute", choices=("fast", "exact"), default="fast", help="of MLXR")
    parser.add_argument("--threads", type=int, help="of each engine (as many as it chooses)")
    parser.add_argument("--cpu", action="store_true", help="measure processor time")
    parser.add_argument("--texts", type=int, default=256, help="texts of a turn (256)")
    parser.add_argument("--turns", type=int, default=5, help="turns (5)")
    args = parser.parse_args()
    if bool(args.llama_server) != bool(args.gguf):
        parser.error("--llama-server and --gguf go together")
    return args


if __name__ == "__main__":
    sys.exit(main())
