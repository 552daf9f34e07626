"""An engine over layers that differ: other heads, values, windows, and keys of earlier layers.

Requests share prefixes, fork, are preempted and begin again, and some of their tokens are guessed, rightly and wrongly;
what they answer is what each answers alone.
"""

from typing import Any

import pytest

from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.core import EngineCore
from mlxr.runtime.engine.core_stats import CoreStats
from mlxr.runtime.engine.make_requests import RequestMaker, Terms
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.engine.speculation.speculator import Speculator
from mlxr.runtime.hosts.cpu.host import CpuHost
from mlxr_tests.family_specs import family_spec
from mlxr_tests.few import few
from mlxr_tests.memory_weights import read_memory
from mlxr_tests.native_weights import random_native
from mlxr_tests.specs import compiled

EXACT = {"compute": "exact", "cache__max_sequences": 4}
HELD = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def answers(name: str, num_blocks: int, *prompts: list[int], samples: int = 1) -> tuple[list[Any], CoreStats]:
    """What requests answer, one beside the other, and what the engine counted."""
    alike = {"deterministic": not name.startswith("latent")}  # or else decode has none of its own ops
    artifact = compiled(family_spec(name, cache__num_blocks=num_blocks, **EXACT, **alike), target="cpu")
    host = CpuHost(artifact, read_memory(random_native(artifact.plan)[0]), Arena(artifact.plan.arena), threads=1)
    pager = Pager.from_geometry(artifact.plan.arena)
    core, maker = EngineCore(host, pager), RequestMaker(artifact.plan, artifact.plan.arena, None, ("toy", "f32"))
    core.speculator = Speculator()
    asked = Sampling(max_tokens=16, ignore_eos=True, logprobs=1, n=samples)
    requests = []
    for prompt in prompts:
        made = maker.make(0, prompt, asked, lambda news: None, 0.0, Terms())
        requests += made
        for request in made:
            core.add(request)
    while core.step():
        pager.check_integrity()
    told = [request.answer.completion for request in requests]
    return [(answer.token_ids, answer.logprobs) for answer in told], core.stats()


@pytest.mark.parametrize("name", few(["shared-keys", "values-by-layer", "heads-by-layer"], ["values-by-layer"]))
def test_answers_are_those_of_each_alone(name: str) -> None:
    prompts = [[*HELD, *range(20, 20 + i)] for i in (1, 3, 1, 6)]
    alone = [answers(name, 60, prompt)[0][0] for prompt in prompts]
    together, stats = answers(name, 12, *prompts * 3)
    assert together == alone * 3
    assert stats.preemptions and stats.cached_tokens, "or else it shows little"


def test_samples_of_a_prompt_are_what_it_answers_alone() -> None:
    alone = answers("shared-keys", 60, HELD)[0]
    together, stats = answers("shared-keys", 60, HELD, HELD[::-1], HELD, samples=2)
    assert together[:2] == alone * 2 and together[4:] == alone * 2
    assert stats.cached_tokens
