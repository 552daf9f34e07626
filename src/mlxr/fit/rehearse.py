"""Times a model's C program on this machine without its weights, in a process of its own; see `rehearsal.py`."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import HostError

_SECONDS = 600
"""Longer than this, nobody waits: it takes the compiler a minute, and the program some seconds."""


@dataclass(frozen=True)
class Rehearsal:
    """What was measured.

    Attributes:
        decode_tokens_per_second: with one sequence, after the context that was asked for: that of a median step.
        prompt_tokens_per_second: of that context.
        program_bytes: the most memory of the process, without what the plan counts.
    """

    decode_tokens_per_second: float
    prompt_tokens_per_second: float
    program_bytes: int


@dataclass(frozen=True)
class ExpertTimes:
    """What the experts that a card leaves to the CPU take of a step, of all layers together.

    Attributes:
        decode_seconds: of one token.
        prefill_seconds: of the longest chunk of a prompt.
    """

    decode_seconds: float
    prefill_seconds: float


def rehearse_experts(artifact: Artifact, threads: int | None) -> ExpertTimes:
    """Times the experts that a card leaves to the CPU; see `rehearsed_experts.py`.

    Args:
        artifact: a model whose plan leaves some.
        threads: as for `mlxr.load`.

    Raises:
        HostError: their program cannot be built or run.
    """
    return ExpertTimes(**_run(artifact, None, 0, threads))


def rehearse(artifact: Artifact, weights: Path | None, context: int, threads: int | None) -> Rehearsal:
    """Times it.

    Args:
        artifact: the compiled model.
        weights: its files, of which the tokenizer is read; None: there are none.
        context: tokens of the prompt.
        threads: as for `CpuHost`.

    Raises:
        HostError: it cannot be built or run.
    """
    return Rehearsal(**_run(artifact, weights, context, threads))


def _run(artifact: Artifact, weights: Path | None, context: int, threads: int | None) -> dict[str, Any]:
    with TemporaryDirectory(prefix="mlxr-") as folder:
        artifact.write(Path(folder, "artifact"))
        words = (str(Path(folder, "artifact")), str(weights or ""), str(context), str(threads or 0))
        command = [sys.executable, "-P", "-m", "mlxr.fit.rehearsal", *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise HostError(f"timing its program took more than {_SECONDS} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        killed = done.returncode < 0  # then its last line is no error of it
        raise HostError(
            f"its program ended with {done.returncode}" if killed or not lines else lines[-1].removeprefix("error: ")
        )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures
