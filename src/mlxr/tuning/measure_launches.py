"""Measures every kind of launch of an artifact on this machine's GPU: `mlxr inspect --measure`."""

from collections.abc import Mapping

from mlxr.compiler.artifact import Artifact, KernelCall, Launch
from mlxr.compiler.errors import HostError
from mlxr.tuning.random_inputs import RandomInputs, decode_batch, prefill_batch
from mlxr.tuning.stopwatch import Stopwatch
from mlxr.tuning.timed_launches import KernelMaker, TimedLaunches


def measure_launches(
    artifact: Artifact, make_kernels: KernelMaker, cache_bytes: int, context: int, batch: int, stopwatch: Stopwatch
) -> Mapping[tuple[str, str], float]:
    """Times the launches of the two batches of `mlxr.inspect.roofline.roofline`, each kernel once.

    Args:
        artifact: whose launches.
        make_kernels: of the host.
        cache_bytes: what the GPU's last cache holds.
        context: tokens of each sequence in decode.
        batch: sequences in decode.
        stopwatch: times them.

    Returns:
        Step and kernel (as planned, also where MLX runs in its place) to microseconds.

    Raises:
        HostError: a kernel cannot be built, or fails.
        ArenaError: the arena does not fit into this machine's memory.
        RequestError: the artifact does not hold so many tokens or sequences.
    """
    plan = artifact.plan
    kernels, inputs = make_kernels(artifact), RandomInputs(artifact, cache_bytes)
    times_us: dict[tuple[str, str], float] = {}
    for phase, step_batch in (
        ("decode", decode_batch(artifact, batch, context)),
        ("prefill", prefill_batch(artifact, min(plan.max_tokens, plan.arena.context))),
    ):
        timed = TimedLaunches(artifact, kernels, inputs, step_batch)
        kernel_of = {la.outputs[0]: la.kernel for la in timed.planned if not la.needs_library}
        distinct: dict[str, Launch] = {}
        for launch in timed.running:
            is_kernel = isinstance(launch.body, KernelCall)
            distinct.setdefault(launch.kernel if is_kernel else kernel_of[launch.outputs[0]], launch)
        for kernel, launch in distinct.items():
            (time_us,) = stopwatch.times_us([timed.task([launch])])
            if isinstance(time_us, HostError):
                raise time_us
            times_us[phase, kernel] = time_us
    return times_us
