"""Chooses thresholds, the rows from which another kernel runs: both kernels are timed at several numbers of rows."""

from collections.abc import Mapping

from mlxr.compiler.artifact import Artifact, KernelCall
from mlxr.tuning.scenario import LaunchKind, Scenario, kinds_of
from mlxr.tuning.site_tuning import MARGIN, SiteTuning
from mlxr.tuning.stopwatch import TimedTask
from mlxr.tuning.workbench import EVERYWHERE, Workbench

_NEVER = 1_000_000
"""A number of rows that no step has."""

_Sides = list[tuple[TimedTask, TimedTask]]
"""What runs below a threshold, and from it on, for each kind of op of a site."""


def search_threshold(bench: Workbench, name: str) -> list[SiteTuning]:
    """What was measured and chosen of one threshold for each kind of launch, which the workbench keeps.

    Args:
        bench: what all searches share.
        name: the flat name of a number of rows from which something else runs.

    Raises:
        HostError: a kernel cannot be built, or fails.
    """
    base = bench.artifacts.compiled()
    most_rows = min(base.plan.max_tokens, base.plan.arena.context)
    tunings: dict[str, SiteTuning] = {}
    timed: dict[str, dict[int, _Sides]] = {}
    for rows in bench.candidates.threshold_rows:
        if rows > most_rows:
            continue
        bench.tell(f"{rows} rows: {name}")
        scenario = Scenario(f"{rows} rows", (name,), 0, rows, every_row=rows <= base.plan.max_rows)
        kinds: Mapping[str, LaunchKind] = kinds_of(base, scenario.batch(base), scenario.sizes)
        if bench.candidates.thresholds[name].shared:
            kinds = _kind_of_all_weights(bench, base, name)
        for site, sides in _sides(bench, scenario, name, kinds).items():
            size = {name: kinds[site].sizes[name]}
            tuning = tunings.setdefault(site, SiteTuning("2 rows and more", site, size, size))
            candidates = [
                ({name: rows + 1}, [below for below, _ in sides]),
                ({name: rows}, [above for _, above in sides]),
            ]
            trials = bench.timer.trials(candidates)
            tuning.rounds.append(trials)
            if not any(trial.error for trial in trials):
                timed.setdefault(site, {})[rows] = sides
    for site, tuning in tunings.items():
        _choose(tuning, name, bench.device)
        _confirm(bench, tuning, name, timed.get(site, {}))
        bench.artifacts.keep(tuning)
    return list(tunings.values())


def _sides(bench: Workbench, scenario: Scenario, name: str, kinds: Mapping[str, LaunchKind]) -> dict[str, _Sides]:
    """The launches of each site in a batch as they are below the threshold, and as they are from it on."""
    ops = {site: kind.ops for site, kind in kinds.items()}
    below, above = (
        bench.timer.tasks(bench.artifacts.compiled({site: {name: rows} for site in ops}), scenario, ops)
        for rows in (_NEVER, 1)
    )
    return {site: list(zip(below[site], above[site], strict=True)) for site in ops}


def _kind_of_all_weights(bench: Workbench, base: Artifact, name: str) -> dict[str, LaunchKind]:
    """The launches that a threshold of all quantised weights is for: its ops in one layer of each kind.

    The threshold decides when MLX multiplies by unpacked weights. It is one for all, since one launch unpacks what
    several ops read. Unpacking is timed with them, though a host with memory to spare does it once: there MLX is
    faster from fewer rows on.
    """
    present = next(iter(_values(base, name).values()), None)
    if present is None:
        return {}
    always = bench.artifacts.compiled({EVERYWHERE: {name: 1}})
    decided, graph = _values(always, name), always.graph("prefill")
    layers: dict[int | None, list[tuple[str, str]]] = {}
    for launch in always.plan.program("metal").phase("prefill").launches:
        if isinstance(launch.body, KernelCall) and launch.kernel in decided:
            layers.setdefault(graph.op(launch.op).layer, []).append((launch.op, launch.kernel))
    # Layers with the same kernels are of one kind, of which the first layer stays.
    kinds = {tuple(kernel for _, kernel in layer): layer for layer in reversed(layers.values())}
    ops = dict.fromkeys(op for layer in kinds.values() for op, _ in layer)
    return {EVERYWHERE: LaunchKind({name: present}, list(ops))}


def _values(artifact: Artifact, name: str) -> dict[str, int]:
    """The value of a size for each kernel that has it, by the kernel's name."""
    chosen_of = {kernel.name: kernel.chosen for kernel in artifact.plan.program("metal").kernels}
    return {kernel: chosen.sizes[name] for kernel, chosen in chosen_of.items() if chosen and name in chosen.sizes}


def _choose(tuning: SiteTuning, name: str, device: str) -> None:
    """Takes the fewest rows from which on the other side is never slower, if the present threshold is clearly wrong."""
    times = [(above.sizes[name], below.time_us, above.time_us) for below, above in tuning.rounds]
    known = [(rows, below, above) for rows, below, above in times if below is not None and above is not None]
    present = tuning.before[name] or _NEVER
    if not any(
        (above if rows >= present else below) * (1 - MARGIN) > min(below, above) for rows, below, above in known
    ):
        return
    threshold = known[-1][0] + 1
    for rows, below, above in reversed(known):
        if above > below:
            break
        threshold = rows
    tuning.best = {name: threshold}
    tuning.because = f"the kernel for {threshold} rows and more is faster there on {device}"


def _confirm(bench: Workbench, tuning: SiteTuning, name: str, timed: Mapping[int, _Sides]) -> None:
    """Compares the new threshold with the old one, at the numbers of rows for which they choose different kernels."""
    old, new = (rows or _NEVER for rows in (tuning.before[name], tuning.best[name]))
    pairs = [
        (above, below) if new > old else (below, above)
        for rows, sides in timed.items()
        for below, above in sides
        if (rows >= old) != (rows >= new)
    ]
    if pairs and not bench.timer.compare(pairs).is_faster:
        bench.forget(tuning)
