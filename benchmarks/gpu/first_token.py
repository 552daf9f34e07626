"""Seconds from starting a process to a model's first token, with nothing cached: no kernels, no artifact.

    python -m gpu.first_token mlxr|mlx-lm FOLDER HOST LOGITS

is one such process: it prints `token` when it has a token, then writes the logits after the prompt to a file.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from peers.worker import BENCHMARKS

from gpu.model_files import write_model
from gpu.work import Row

PROMPT = (5, 6, 7, 8, 9)
_CONTEXT = 2048


def measure(engine: str, folder: Path, host: str) -> tuple[float, np.ndarray]:
    """Starts a process; its seconds to the first token, and its logits after the prompt, [vocab].

    Raises:
        RuntimeError: the process failed; the text is the end of what it said.
    """
    with tempfile.TemporaryDirectory() as empty:
        logits = Path(empty) / "logits.npy"
        path = os.pathsep.join([str(BENCHMARKS), str(BENCHMARKS.parent / "src"), os.environ.get("PYTHONPATH", "")])
        nothing_cached = {name: empty for name in ("MLXR_CACHE_DIR", "MLX_PTX_CACHE_DIR", "CUDA_CACHE_PATH")}
        with tempfile.TemporaryFile("w+") as log:
            start = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", "gpu.first_token", engine, str(folder), host, str(logits)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | nothing_cached | {"PYTHONPATH": path},
            )
            assert process.stdout is not None
            told = process.stdout.readline()
            seconds = time.perf_counter() - start
            if process.wait() or told.strip() != "token":
                log.seek(0)
                raise RuntimeError(f"{engine} ended with code {process.returncode}: {log.read()[-500:].strip()}")
        return seconds, np.load(logits)


def measure_row(
    row: Row, host: str, rounds: int, model_folder: Path
) -> tuple[dict[str, list[float]], np.ndarray, np.ndarray]:
    """Both engines in turns: seconds by engine, and the logits of MLXR and of mlx-lm."""
    seconds: dict[str, list[float]] = {"mlxr": [], "mlx-lm": []}
    logits = {}
    write_model(row.model, model_folder, _CONTEXT)
    for _ in range(rounds):
        for engine, times in seconds.items():
            taken, logits[engine] = measure(engine, model_folder, host)
            times.append(taken)
    return seconds, logits["mlxr"], logits["mlx-lm"]


def _run_mlxr(folder: str, host: str) -> tuple[int, Callable[[], npt.NDArray[np.float32]]]:
    """The first token, and a function that gives logits."""
    import mlxr

    model = mlxr.load(folder, host=host)
    (event,) = model.start([list(PROMPT)], max_tokens=1)
    return event.token_id, lambda: model.logits(list(PROMPT))[-1]


def _run_mlx_lm(folder: str, host: str) -> tuple[int, Callable[[], npt.NDArray[np.float32]]]:
    import mlx.core as mx
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model

    model, _ = load_model(Path(folder))
    token, _ = next(generate_step(mx.array(PROMPT), model, max_tokens=1))
    return int(token), lambda: np.array(model(mx.array([PROMPT]))[0, -1].astype(mx.float32))


def main() -> None:
    """One process's work."""
    engine, folder, host, path = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _, logits = (_run_mlxr if engine == "mlxr" else _run_mlx_lm)(folder, host)
    print("token", file=out, flush=True)
    np.save(path, logits())


if __name__ == "__main__":
    main()
