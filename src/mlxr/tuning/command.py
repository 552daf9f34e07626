"""What `mlxr tune` does."""

import argparse
from dataclasses import replace
from importlib import metadata

from mlxr.compiler.artifact import TUNING, Artifact, Chip
from mlxr.compiler.artifact.running import usual_context
from mlxr.compiler.chips.catalog import GENERIC, find_chip, find_chip_of_device
from mlxr.compiler.command.type_options import type_changes
from mlxr.loading.resolve import here, resolve_artifact
from mlxr.progress_line import ProgressLine
from mlxr.tuning.candidates import CANDIDATES
from mlxr.tuning.pieces import device_name, gpu_host
from mlxr.tuning.report import tuning_json, tuning_text
from mlxr.tuning.search import Tuner
from mlxr.tuning.step_times import StepTimes
from mlxr.tuning.stopwatch import Stopwatch


def tune(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code.

    Raises:
        MlxrError: there is no such model or chip, no GPU, or the artifact cannot be written.
    """
    changes = replace(type_changes(args), trust_artifact=args.trust_artifact)
    artifact, _ = resolve_artifact(args.model, changes, find_chip(args.chip) if args.chip else here())
    host = gpu_host(args.host, artifact)
    device = device_name()
    chip = _chip(args.chip, artifact, device)
    context = args.context if args.context is not None else usual_context(artifact.plan)
    with ProgressLine() as line:
        tuner = Tuner(
            artifact,
            chip,
            host.make_kernels,
            Stopwatch(),
            device,
            line.show,
            StepTimes(host.name),
            step_kernels=host.has_step_kernels,
            candidates=CANDIDATES,
            context=context,
        )
        tuning = tuner.tune(context)
    about = {
        "artifact": artifact.digest,
        "chip": chip.name,
        "device": device,
        "host": host.name,
        "mlx": metadata.version("mlx"),
        "context": context,
    }
    text = tuning_json(about, tuning.sites)
    Artifact({**tuning.artifact.files, TUNING: text}).write(args.output)
    print(text if args.json else f"{tuning_text(tuning.sites)}wrote {args.output}, for {chip.title}\n", end="")
    return 0


def _chip(name: str | None, artifact: Artifact, device: str) -> Chip:
    """The chip that was asked for; else the artifact's own, unless that is none in particular; else this machine's."""
    if name is not None:
        return find_chip(name)
    if artifact.chip.name != GENERIC:
        return artifact.chip
    return find_chip_of_device(device) or artifact.chip
