"""Chooses the size of the cache's blocks by the times of whole decode steps and of prompts.

Blocks are part of the spec, not a rule of a chip: the tuned artifact has another spec, and its arena and its memory
are planned for that.
"""

from collections.abc import Sequence

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import HostError, MlxrError
from mlxr.tuning.site_tuning import MARGIN, SiteTuning, Trial
from mlxr.tuning.step_times import StepTimer
from mlxr.tuning.workbench import Workbench

SITE = "blocks of the cache"
_TRIED = (16, 32, 64)


def search_blocks(bench: Workbench, step_times: StepTimer, context: int) -> list[SiteTuning]:
    """What was measured in decode and with prompts, and the same choice in both; empty where the arena has no blocks.

    Another size than the present one must save some of their times together, and cost neither of them anything.

    Args:
        bench: what all searches share; it keeps the winner.
        step_times: times whole steps.
        context: tokens of the sequence in decode; fewer where it could not grow from there.
    """
    plan = bench.artifacts.compiled().plan
    if plan.arena.mode == "contiguous":
        return []
    present = plan.arena.block_size
    bench.tell("whole steps and prompts: block_size")
    artifacts = _compiled(bench, [present, *(size for size in _TRIED if size != present)])
    context = step_times.context_of(artifacts[0], context)
    tokens = min(plan.max_tokens, plan.arena.context - 1)
    tunings = [
        SiteTuning(scenario, SITE, {"block_size": present}, {"block_size": present})
        for scenario in (f"whole steps of 1 sequence of {context} tokens", f"prompts of {tokens} tokens")
    ]
    best = _time(bench, step_times, tunings, artifacts, context, tokens)
    if best is not artifacts[0] and _time(bench, step_times, tunings, [artifacts[0], best], context, tokens) is best:
        size = best.plan.arena.block_size
        for tuning in tunings:
            before, after = (trial.time_us for trial in tuning.rounds[-1])
            assert before is not None and after is not None, "both were timed"
            tuning.best = {"block_size": size}
            tuning.because = tuning.reason(before, after, bench.device)
        bench.artifacts.keep_blocks(size)
    elif best is not artifacts[0]:
        bench.tell(f"{SITE}: not clearly faster when timed again, they stay as they are")
    return tunings


def _compiled(bench: Workbench, sizes: Sequence[int]) -> list[Artifact]:
    """With blocks of each size for which there are kernels; that of the first there is."""
    artifacts = []
    for size in sizes:
        try:
            artifacts.append(bench.artifacts.with_blocks(size))
        except MlxrError as error:
            bench.tell(f"{SITE} of {size} tokens are left out: {error}")
    return artifacts


def _time(
    bench: Workbench,
    step_times: StepTimer,
    tunings: Sequence[SiteTuning],
    artifacts: Sequence[Artifact],
    context: int,
    tokens: int,
) -> Artifact:
    """Times all, and gives the best, or the first where none is clearly better or that cannot be timed."""
    both = step_times.times_us(artifacts, context), step_times.prompt_times_us(artifacts, tokens)
    for tuning, times in zip(tunings, both, strict=True):
        tuning.rounds.append([_trial(artifact, time_us) for artifact, time_us in zip(artifacts, times, strict=True)])
    (first, first_prompt), *others = zip(*both, strict=True)
    if isinstance(first, HostError) or isinstance(first_prompt, HostError):
        for tuning in tunings:
            tuning.failure = str(first if isinstance(first, HostError) else first_prompt)
        return artifacts[0]
    best, least = artifacts[0], 2 * (1 - MARGIN)
    for artifact, (decode, prompt) in zip(artifacts[1:], others, strict=True):
        if isinstance(decode, HostError) or isinstance(prompt, HostError):
            continue
        shares = decode / first, prompt / first_prompt
        if sum(shares) < least and max(shares) < 1 + MARGIN:
            best, least = artifact, sum(shares)
    return best


def _trial(artifact: Artifact, time_us: float | HostError) -> Trial:
    sizes = {"block_size": artifact.plan.arena.block_size}
    return Trial(sizes, None, str(time_us)) if isinstance(time_us, HostError) else Trial(sizes, time_us)
