"""`mlxr tune`: chooses launch geometry by measuring on this machine's GPU."""

import argparse
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from mlxr.cli.argparse_types import model_name, token_count
from mlxr.cli.model_arguments import add_trust_argument
from mlxr.cli.terminal import ProgressLine
from mlxr.compiler.artifact import TUNING, Artifact, Chip
from mlxr.compiler.artifact.typical_steps import usual_context
from mlxr.compiler.chips.catalog import GENERIC, find_chip, find_chip_of_device
from mlxr.compiler.cli.spec_options import add_type_arguments, type_changes
from mlxr.loading.find_model import MODEL_HELP
from mlxr.loading.resolve import here, resolve_artifact
from mlxr.runtime.hosts.registry import AUTO, host_choices


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the `tune` command; its `run` is the default of the attribute `run`."""
    parser = subparsers.add_parser(
        "tune",
        help="choose launch geometry by measuring on this machine's GPU",
        description="Time candidates of each kind of launch on this machine's GPU, with random weights, and write a "
        "new artifact with the fastest. Its tuning.json has the times of all candidates; mlxr inspect shows what was "
        "chosen.",
    )
    parser.add_argument("model", type=model_name, metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="where to write the artifact")
    parser.add_argument(
        "--host",
        default=AUTO,
        choices=host_choices(),
        help="the host whose launches to time; it must have a GPU (default: this machine's)",
    )
    parser.add_argument(
        "--chip",
        metavar="NAME",
        help="the chip whose geometry to start from (default: the artifact's, else this machine's)",
    )
    parser.add_argument(
        "--context",
        type=token_count,
        metavar="N",
        help="tokens of each sequence in decode (default: 512)",
    )
    add_type_arguments(parser)
    add_trust_argument(parser)
    parser.add_argument("--json", action="store_true", help="print what tuning.json holds")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code.

    Raises:
        MlxrError: there is no such model or chip, no GPU, or the artifact cannot be written.
    """
    from mlxr.tuning.candidates import CANDIDATES  # noqa: PLC0415 (these load MLX)
    from mlxr.tuning.search import Tuner  # noqa: PLC0415
    from mlxr.tuning.site_tuning import tuning_json, tuning_text  # noqa: PLC0415
    from mlxr.tuning.step_times import StepTimer  # noqa: PLC0415
    from mlxr.tuning.stopwatch import Stopwatch  # noqa: PLC0415
    from mlxr.tuning.timed_launches import device_name, gpu_host  # noqa: PLC0415

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
            StepTimer(host.name),
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
