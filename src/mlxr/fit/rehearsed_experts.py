"""Times the experts that a card leaves to the CPU, over weights that are zeros, from this process in its place."""

import time
from dataclasses import dataclass

import numpy as np

from mlxr.compiler.artifact import Artifact, CTensor, HandoverCall, Phase, TensorSource
from mlxr.compiler.artifact.typical_steps import chunk_dims
from mlxr.fit.empty_weights import EmptyWeights
from mlxr.runtime.engine.cpu_experts import CpuExperts, resting, threads_beside_card
from mlxr.runtime.hosts.cpu.host import CpuHost
from mlxr.runtime.hosts.handover import Floats, Handover, Integers
from mlxr.runtime.weights.tensor_rows import TensorRows

_RUNS, _STEPS = 3, 16


def rehearse_experts(artifact: Artifact, threads: int | None) -> dict[str, float]:
    """The fields of an `ExpertTimes`: what the experts of all layers take, without the exchange itself.

    Args:
        artifact: a model whose plan leaves experts to the CPU.
        threads: as for `CpuExperts.load`.
    """
    assert artifact.experts is not None, "the CPU has some"
    plan, program = artifact.plan, artifact.experts.plan.program(CpuHost.target)
    assert program.library is not None, "a program in C has a library"
    weights = EmptyWeights(program.library.tensors)
    arena = CpuHost.arena_type(program.arena)
    host = CpuHost(artifact.experts, _unread, arena, threads=threads_beside_card(threads), lender=weights)
    experts = CpuExperts(host)
    handover = Handover(plan, experts)
    try:
        seconds = {}
        for phase, tokens in (("decode", 1), ("prefill", chunk_dims(plan)["tokens"])):
            step = _Step.of(next(p for p in plan.first.phases if p.name == phase), tokens, program.library.tensors)
            with resting(experts):
                exchange = step.seconds(handover)
            seconds[f"{phase}_seconds"] = max(0.0, step.seconds(handover) - exchange)
        return seconds
    finally:
        experts.close()


@dataclass(frozen=True)
class _Step:
    """What some steps give, each other experts, and room for what they take."""

    phase: Phase
    gives: tuple[HandoverCall, ...]
    x: tuple[Floats, ...]
    chosen: tuple[tuple[Integers, ...], ...]
    weights: tuple[Floats | None, ...]
    out: Floats

    @classmethod
    def of(cls, phase: Phase, tokens: int, tensors: tuple[CTensor, ...]) -> "_Step":
        calls = [launch.body for launch in phase.launches if isinstance(launch.body, HandoverCall)]
        gives = tuple(call for call in calls if call.function == "give")
        taken = max(call.width for call in calls if call.function == "take")
        rng = np.random.default_rng(1)
        count = max(tensor.matrices for tensor in tensors)
        chosen, weights, steps = [], [], _STEPS if tokens == 1 else 1
        for call in gives:
            ports = {port.name: port for port in call.ports}
            top_k = ports["experts"].shape[1]
            assert isinstance(top_k, int), "only rows have symbolic dims"
            orders = [np.argsort(rng.random((tokens, count)), axis=1)[:, :top_k] for _ in range(steps)]
            chosen.append([order.astype(np.int32) for order in orders])
            weights.append(np.full((tokens, top_k), 1 / top_k, np.float32) if "weights" in ports else None)
        x = tuple(rng.standard_normal((tokens, call.width), np.float32) for call in gives)
        return cls(
            phase, gives, x, tuple(zip(*chosen, strict=True)), tuple(weights), np.zeros((tokens, taken), np.float32)
        )

    def seconds(self, handover: Handover) -> float:
        """Of a step, in the fastest of some runs: what else the machine does makes some slower."""
        return min(self._run(handover) for _ in range(_RUNS)) / len(self.chosen)

    def _run(self, handover: Handover) -> float:
        begun = time.perf_counter()
        for chosen in self.chosen:
            handover.begin()
            for call, x, experts, weights in zip(self.gives, self.x, chosen, self.weights, strict=True):
                handover.give(self.phase.name, call.place, x, experts, weights)
                handover.take(self.out)
        return time.perf_counter() - begun


def _unread(source: TensorSource) -> TensorRows:
    raise AssertionError(f"{source.name} is lent")
