"""As few layers as possible leave their experts to the CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import RequestError, SpecError
from mlxr.fit import rehearsed_experts
from mlxr.fit.fit import fit
from mlxr.fit.machine import this_machine
from mlxr.fit.rehearse import ExpertTimes
from mlxr.loading.fit_experts import expert_bytes, fewest_layers, leaving_experts
from mlxr.loading.options import LoadOptions
from mlxr.runtime.hosts.cpu.host import CpuHost
from mlxr.runtime.hosts.registry import hosts
from mlxr.runtime.memory.free_memory import FreeMemory
from mlxr_tests.card_and_cpu import spec_with_experts


def _whole() -> Artifact:
    return compile_spec(spec_with_experts(0), targets=("metal",)).artifact


@pytest.mark.parametrize(("lacking", "count"), [(0, 0), (1, 1), (216 << 10, 1), ((216 << 10) + 1, 2), (1 << 30, 3)])
def test_as_many_layers_as_are_lacking(lacking: int, count: int) -> None:
    whole = _whole()
    total = whole.plan.first.memory.total_bytes
    assert expert_bytes(whole) == [216 << 10] * 3
    free = FreeMemory(max(0, total - lacking), total, "the card")
    assert fewest_layers(whole, hosts()["sim"], LoadOptions(experts_on_cpu="auto"), free) == count


def test_the_plan_of_the_rest_fits() -> None:
    """To the byte, with its own activations."""
    spec, total = spec_with_experts(0), _whole().plan.first.memory.total_bytes
    free = FreeMemory(total - 1, total, "the card")
    cut = leaving_experts(spec, hosts()["sim"], None, LoadOptions(experts_on_cpu="auto"), free)
    memory = compile_spec(cut, targets=("metal",)).artifact.plan.first.memory
    assert 0 < cut.experts_on_cpu < 3 and memory.total_bytes <= free.free_bytes
    assert leaving_experts(spec, hosts()["cpu"], None, LoadOptions(experts_on_cpu="auto"), free) == spec


def test_fit_tells_of_both_memories(tmp_path: Path) -> None:
    """Without weights, by the plan alone."""
    told = fit(spec_with_experts(0), this_machine("sim", 1 << 30), LoadOptions(experts_on_cpu=2), timed=False)
    whole = fit(spec_with_experts(0), this_machine("sim", 1 << 30), LoadOptions(), timed=False)
    assert told.experts_on_cpu == 2 and told.cpu_bytes > 432 << 10
    assert told.weights_bytes == whole.weights_bytes - (432 << 10) and not whole.cpu_bytes


def test_fit_tells_how_fast_both_are_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The card's launches by its roofline, and the CPU's experts, which run; of another machine's CPU nobody knows."""
    card = replace(this_machine("sim", 1 << 30), chip=find_chip("h100"))
    spec, own = spec_with_experts(2), LoadOptions(experts_on_cpu=2, threads=1)
    alone, told = fit(spec_with_experts(0), card, LoadOptions()).speed, fit(spec, card, own).speed
    assert alone is not None and told is not None and "timed here" in told.source
    assert told.decode_tokens_per_second < alone.decode_tokens_per_second
    assert told.prompt_tokens_per_second < alone.prompt_tokens_per_second

    monkeypatch.setattr("mlxr.fit.fit.rehearse_experts", lambda *_: ExpertTimes(0.1, 0.5))
    told = fit(spec, card, own).speed
    assert told is not None and 9.9 < told.decode_tokens_per_second < 10
    elsewhere = fit(spec, replace(card, is_here=False), own)
    assert elsewhere.speed is None and "only a machine with both can tell" in str(elsewhere.no_speed)


def test_all_chosen_experts_are_computed_where_they_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compile_spec(spec_with_experts(2), targets=("metal",)).artifact
    made = list[CpuHost]()

    class Watched(CpuHost):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr(rehearsed_experts, "CpuHost", Watched)
    rehearsed_experts.rehearse_experts(artifact, 1)
    given = sum(count for name, count in made[0].launches.items() if name.startswith("give_sum"))
    assert given == 2 * 2 * 3 * (16 + 1), "layers, resting or not, runs, steps of one token and a prompt's chunk"


def test_what_it_cannot_be() -> None:
    with pytest.raises(RequestError, match="experts_on_cpu is 'most', expected auto or a number of layers"):
        LoadOptions(experts_on_cpu="most")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="experts_on_cpu is True"):
        LoadOptions(experts_on_cpu=True)
    for changes, message in (
        ({"model__mlp": {"intermediate_size": 64}}, "none of the first 1 layers has experts"),
        ({"parallel": {"tensor": 2}}, "split over ranks keeps its experts"),
        ({"adapters": {"slots": 1, "rank": 8}}, "has no adapters"),
    ):
        with pytest.raises((SpecError, ValueError), match=message):
            spec_with_experts(1, **changes)
