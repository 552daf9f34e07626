"""What `mlxr inspect` does. Results go to standard output, everything else to standard error."""

import argparse
import json
import sys
from dataclasses import replace

from mlxr.cli.terminal import shows_colour, terminal_width
from mlxr.compiler.artifact import Artifact, Chip, Plan
from mlxr.compiler.artifact.typical_steps import usual_context
from mlxr.compiler.chips.catalog import find_chip, find_chip_of_device
from mlxr.compiler.chips.link import find_link, known_links
from mlxr.compiler.cli.spec_options import type_changes
from mlxr.compiler.errors import ArtifactError, RequestError
from mlxr.compiler.targets.registry import refused_activations
from mlxr.inspect.c_report import c_function, c_json, c_report
from mlxr.inspect.highlight import highlight
from mlxr.inspect.picture.draw import draw_graphs, write_picture
from mlxr.inspect.report import report
from mlxr.inspect.report_json import kernel_json, report_json
from mlxr.inspect.roofline import roofline as limits
from mlxr.inspect.roofline_report import Roofline, roofline_json, roofline_text
from mlxr.inspect.split.compare_splits import SplitComparison, compare_splits
from mlxr.inspect.split.prediction_report import prediction_json, prediction_report
from mlxr.inspect.split.ranks_report import rank_json, rank_lines, ranks_json, ranks_report, split_of
from mlxr.inspect.text_table import Ink
from mlxr.loading.resolve import here, resolve_artifact
from mlxr.runtime.hosts.registry import AUTO

_ONLY_WITH_TIMES = "--context and --batch are for --chip NAME, --predict or --measure"


def show(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code.

    Raises:
        ArtifactError: there is no such artifact or kernel.
        MlxrError: the picture cannot be written, or options do not go together; see also `roofline`.
    """
    chip = find_chip(args.chip) if args.chip else here()
    changes = replace(
        type_changes(args),
        accepted_keys=tuple(args.accept_key),
        trust_artifact=args.trust_artifact or not args.measure,  # nothing else runs it
    )
    artifact, _ = resolve_artifact(args.model, changes, chip)
    if artifact.parallel is not None:
        return show_split(artifact, args)
    for option in ("rank", "link"):
        if getattr(args, option) is not None:
            raise RequestError(f"{artifact.spec.name} is not split over ranks: leave out --{option}")
    return show_artifact(artifact, args)


def show_split(artifact: Artifact, args: argparse.Namespace) -> int:
    """Shows all ranks of a model that is split, or one of them; see `show`."""
    size = split_of(artifact).size
    width = terminal_width()
    if args.measure:
        raise RequestError("--measure times the launches of a model on one machine, and this one is split over ranks")
    if args.rank is not None:
        if args.link is not None:
            raise RequestError("--link predicts all ranks together: leave out --rank")
        if not 0 <= args.rank < size:
            raise RequestError(f"--rank is {args.rank}; the model has ranks 0 to {size - 1}")
        own = artifact.of_rank(args.rank)
        if args.json:
            return show_artifact(own, args, rank_json(artifact, args.rank))
        if args.kernel is None and args.graph is None:
            print("\n".join(rank_lines(artifact, args.rank, width)))
        return show_artifact(own, args)
    for option in ("kernel", "graph", "all_launches"):
        if getattr(args, option) not in (None, False):
            name = option.replace("_", "-")
            raise RequestError(f"each rank has its own launches and graphs: add --rank N (0 to {size - 1}) to --{name}")
    plan = artifact.of_rank(0).plan
    target = _target(plan, args)
    if args.predict or args.chip is not None or args.link is not None:
        comparison = _comparison(artifact, args, target)
        if args.json:
            print(json.dumps(prediction_json(comparison), indent=1))
        else:
            sys.stdout.write(prediction_report(comparison, width, Ink(shows_colour())))
    elif args.context is not None or args.batch is not None:
        raise RequestError(_ONLY_WITH_TIMES)
    elif args.json:
        print(json.dumps(ranks_json(artifact), indent=1))
    else:
        sys.stdout.write(ranks_report(artifact, target, width, Ink(shows_colour())))
    return 0


def show_artifact(artifact: Artifact, args: argparse.Namespace, about_rank: dict[str, object] | None = None) -> int:
    """Shows an artifact for one machine, or that of one rank; see `show`.

    Args:
        artifact: what to show.
        args: the command's.
        about_rank: of a rank, what else its JSON says.
    """
    target = _target(artifact.plan, args)
    if (reason := refused_activations(args.activations, [target])) is not None:
        raise RequestError(reason)
    in_c = artifact.plan.program(target).library is not None
    if args.chip or args.predict or args.measure:
        _show_roofline(artifact, args, target)
    elif args.context is not None or args.batch is not None:
        raise RequestError(_ONLY_WITH_TIMES)
    elif args.kernel is not None:
        sys.stdout.write(_kernel(artifact, args.kernel, target, args.json))
    elif args.graph is not None:
        write_picture(draw_graphs(artifact), args.graph)
        if args.json:
            print(json.dumps({"graph": str(args.graph)}))
        else:
            print(f"wrote {args.graph}", file=sys.stderr)
    elif args.json:
        contents = c_json(artifact, target) if in_c else report_json(artifact, target)
        print(json.dumps(contents | ({"rank": about_rank} if about_rank else {}), indent=1))
    else:
        width = terminal_width()
        show = c_report if in_c else report
        sys.stdout.write(show(artifact, width, Ink(shows_colour()), args.all_launches, target))
    return 0


def _target(plan: Plan, args: argparse.Namespace) -> str:
    target: str = args.target or plan.targets[0]
    if target not in plan.targets:
        raise ArtifactError(f"the artifact has no target {target}, only {', '.join(plan.targets)}")
    return target


def _comparison(artifact: Artifact, args: argparse.Namespace, target: str) -> SplitComparison:
    if args.link is None:
        raise RequestError(f"name the link between the ranks with --link: {', '.join(known_links())}")
    if target != "metal":
        raise RequestError("only programs for GPUs (--target metal) have predictions")
    plan = artifact.of_rank(0).plan
    context = args.context if args.context is not None else usual_context(plan)
    batch = args.batch if args.batch is not None else 1
    return compare_splits(artifact, find_link(args.link), _chip(artifact, args.chip), context, batch)


def _chip(artifact: Artifact, name: str | None) -> Chip:
    """The chip to predict for: the one that is named, or that the artifact was compiled for, or this machine's."""
    if name is not None:
        return find_chip(name)
    return artifact.chip if artifact.chip.figures is not None else here() or artifact.chip


def _show_roofline(artifact: Artifact, args: argparse.Namespace, target: str) -> None:
    if args.kernel is not None or args.graph is not None or args.all_launches:
        raise RequestError(
            "--chip, --predict and --measure show a table of their own: leave out --kernel, --graph, --all-launches"
        )
    if target != "metal":
        raise RequestError("--chip, --predict and --measure are for GPUs; how fast host cpu is, mlxr bench measures")
    context = args.context if args.context is not None else usual_context(artifact.plan)
    batch = args.batch if args.batch is not None else 1
    roofline = (
        _measured(artifact, args.chip, context, batch)
        if args.measure
        else _predicted(artifact, args.chip, context, batch)
    )
    if args.json:
        print(json.dumps(report_json(artifact) | {"roofline": roofline_json(roofline)}, indent=1))
    else:
        width = terminal_width()
        sys.stdout.write(roofline_text(roofline, width, Ink(shows_colour())))


def _predicted(artifact: Artifact, name: str | None, context: int, batch: int) -> Roofline:
    chip = _chip(artifact, name)
    return Roofline(artifact, chip, limits(artifact, chip, context, batch))


def _measured(artifact: Artifact, name: str | None, context: int, batch: int) -> Roofline:
    from mlxr.tuning.measure_launches import measure_launches  # noqa: PLC0415 (loads MLX)
    from mlxr.tuning.stopwatch import Stopwatch  # noqa: PLC0415
    from mlxr.tuning.timed_launches import device_name, gpu_host  # noqa: PLC0415

    host = gpu_host(AUTO, artifact)
    device = device_name()
    chip = find_chip(name) if name else find_chip_of_device(device)
    if chip is None:
        raise ArtifactError(f"the chip {device} is not known: name one like it with --chip")
    steps = limits(artifact, chip, context, batch)
    cache_bytes = round(chip.figures.cache_mib.value * 2**20) if chip.figures else 0
    times = measure_launches(artifact, host.make_kernels, cache_bytes, context, batch, Stopwatch())
    return Roofline(artifact, chip, steps, host.name, device, times)


def _kernel(artifact: Artifact, name: str, target: str, as_json: bool) -> str:
    if artifact.plan.program(target).library is not None:
        entry_json, text = c_function(artifact, name, target)
        return json.dumps(entry_json | {"source": text}, indent=1) + "\n" if as_json else text
    entry = artifact.kernel_entry(name, target)
    text = artifact.files[entry.file]
    if as_json:
        return json.dumps(kernel_json(entry) | {"source": text}, indent=1) + "\n"
    return highlight(text) if shows_colour() else text
