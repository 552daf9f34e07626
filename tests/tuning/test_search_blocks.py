"""The size of the cache's blocks is chosen by decode steps and prompts whose times are known."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import HostError
from mlxr.tuning.candidates import CANDIDATES
from mlxr.tuning.search_blocks import search_blocks
from mlxr.tuning.site_tuning import SiteTuning, tuning_text
from mlxr.tuning.step_times import StepTimer
from mlxr.tuning.workbench import TrialArtifacts, Workbench
from mlxr_tests.specs import small_spec

Times = Mapping[int, tuple[float, float]]
"""By block size, of a step and of a prompt; none: it cannot be timed."""


class Blocks(StepTimer):
    """Steps and prompts whose times depend on the block size alone; those of the second turn may differ."""

    def __init__(self, times: Times, again: Times | None = None) -> None:
        super().__init__("cuda")
        self.turns = [times, again or times]
        self.tried: list[list[int]] = []

    def times_us(self, artifacts: Sequence[Artifact], context: int) -> list[float | HostError]:
        self.tried.append([artifact.plan.arena.block_size for artifact in artifacts])
        return self._known(0)

    def prompt_times_us(self, artifacts: Sequence[Artifact], tokens: int) -> list[float | HostError]:
        return self._known(1)

    def _known(self, place: int) -> list[float | HostError]:
        times = self.turns[len(self.tried) - 1]
        return [times[size][place] if size in times else HostError("no memory") for size in self.tried[-1]]


def searched(times: Blocks, **cache: Any) -> tuple[Artifact, list[SiteTuning]]:
    """The artifact with the winner, and what is told."""
    spec, chip = small_spec(model__num_layers=1, cache=cache | {"max_sequences": 2}), find_chip("generic")
    artifacts = TrialArtifacts(compile_spec(spec, targets=("metal",), chip=chip).artifact, chip)
    bench = Workbench(artifacts, None, CANDIDATES, "Toy", lambda line: None)  # type: ignore[arg-type]  # times no launch
    sites = search_blocks(bench, times, 20)
    return artifacts.final([]), sites


def test_the_fastest_of_three_is_chosen_and_planned() -> None:
    times = Blocks({16: (100.0, 900.0), 32: (95.0, 890.0), 64: (90.0, 900.0)})
    artifact, (decode, prompt) = searched(times, block_size=16, num_blocks=6)
    assert times.tried == [[16, 32, 64], [16, 64]], "the winner is timed again"
    arena = artifact.plan.arena
    assert (arena.block_size, arena.num_blocks, artifact.spec.cache.block_size) == (64, 2, 64)
    before, _ = searched(Blocks({}), block_size=16, num_blocks=6)
    rows = before.plan.arena.size_bytes // (6 * 16)
    assert artifact.plan.first.memory.arena_bytes == arena.size_bytes == 128 * rows
    assert decode.changed == prompt.changed == {"block_size": 64}
    assert decode.because == "90.00 us instead of 100.00 us with whole steps of 1 sequence of 8 tokens on Toy"
    assert "blocks of the cache, whole steps of 1 sequence of 8 tokens: block_size 16 -> 64" in tuning_text([decode])


@pytest.mark.parametrize(
    "times",
    [
        {16: (100.0, 900.0), 32: (99.0, 890.0), 64: (98.5, 880.0)},
        {16: (100.0, 900.0), 32: (80.0, 950.0), 64: (104.0, 600.0)},
        {32: (90.0, 800.0)},
    ],
    ids=["noise", "one of both is slower", "cannot be timed"],
)
def test_what_is_no_clear_gain_stays(times: Times) -> None:
    artifact, sites = searched(Blocks(times), block_size=16)
    assert artifact.plan.arena.block_size == 16 and not any(site.changed for site in sites)
    assert ("no memory" in tuning_text(sites)) == (16 not in times)


def test_a_gain_that_does_not_come_again_is_forgotten() -> None:
    times = Blocks({16: (100.0, 900.0), 32: (50.0, 900.0)}, again={16: (100.0, 900.0), 32: (100.0, 900.0)})
    artifact, sites = searched(times, block_size=16)
    assert artifact.plan.arena.block_size == 16 and not any(site.because for site in sites)


def test_a_size_of_its_own_is_one_of_those_tried() -> None:
    times = Blocks({4: (100.0, 900.0), 16: (90.0, 900.0), 32: (95.0, 900.0), 64: (95.0, 900.0)})
    artifact, _ = searched(times, block_size=4)
    assert times.tried[0] == [4, 16, 32, 64] and artifact.plan.arena.block_size == 16
