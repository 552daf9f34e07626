"""A program that runs over empty weights: the launches of the plan, and a process that says how fast they were."""

import subprocess
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import pytest

from mlxr.compiler.artifact import CTensor
from mlxr.compiler.errors import HostError
from mlxr.fit import rehearsal
from mlxr.fit.empty_weights import EmptyWeights
from mlxr.fit.rehearse import rehearse
from mlxr.loading.load import load
from mlxr.loading.resolve import resolve_artifact
from mlxr.runtime.hosts.cpu.host import CpuHost
from mlxr_tests.storyteller import TINY


def test_it_runs_what_the_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same launches as a model with its weights, and no tensor is read."""
    artifact, _ = resolve_artifact(str(TINY))
    made: list[CpuHost] = []
    monkeypatch.setattr(rehearsal, "CpuHost", _watched(made))
    figures = rehearsal.rehearse(artifact, None, 100, 1)
    assert figures["decode_tokens_per_second"] > 0 and figures["prompt_tokens_per_second"] > 0
    assert figures["program_bytes"] > 10 << 20, "Python alone takes that"
    with load(TINY, host="cpu", threads=1) as model:
        for run in range(3):
            model.start([list(range(run, 100 + run))], max_tokens=64, ignore_eos=True).finish()
        with_weights = Counter(model.host.launches)
    assert made[0].launches == with_weights
    assert (made[0].own_bytes, made[0].mapped_bytes) == (0, 0)


def _watched(made: list[CpuHost]) -> type[CpuHost]:
    class Watched(CpuHost):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[arg-type]
            made.append(self)

    return Watched


def test_tensors_lie_beside_each_other_in_a_pool_that_is_used_again() -> None:
    artifact, _ = resolve_artifact(str(TINY))
    library = artifact.plan.program("cpu").library
    assert library is not None
    whole, small = EmptyWeights(library.tensors), EmptyWeights(library.tensors, 1)
    assert _overlapping(whole.lent()) == 0 and small.size_bytes < whole.size_bytes
    assert _overlapping(small.lent()) > 0
    places = sorted(address for address in small.lent().values())
    assert places[0] % 64 == 0 and max(places) - places[0] < small.size_bytes


def test_of_mixtures_what_tokens_choose_lies_apart() -> None:
    """Each token chooses the first experts: these must not be the same bytes in each layer."""
    made = {"layout": "packed", "format": "q8_0", "shape": (16, 32), "size_bytes": 6400, "parts": ()}
    layers = [CTensor(name=str(layer), matrices=10, chosen=2, **made) for layer in range(6)]
    lent = EmptyWeights(layers, 13000).lent()
    first = min(lent.values())
    assert [lent[layer] - first for layer in layers] == [0, 1280, 2560, 3840, 5120, 6400]


def test_what_a_killed_process_wrote_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact, _ = resolve_artifact(str(TINY))
    done = subprocess.CompletedProcess([], -9, "", "note: something else\n")
    monkeypatch.setattr("mlxr.fit.rehearse.subprocess.run", lambda *_, **options: done)
    with pytest.raises(HostError, match="its program ended with -9"):
        rehearse(artifact, None, 40, 1)


def _overlapping(lent: Mapping[CTensor, int]) -> int:
    spans = sorted((address, address + tensor.size_bytes) for tensor, address in lent.items())
    return sum(before[1] > after[0] for before, after in pairwise(spans))


def test_a_process_of_its_own() -> None:
    artifact, _ = resolve_artifact(str(TINY))
    timed = rehearse(artifact, TINY, 40, 1)
    assert timed.decode_tokens_per_second > 0 and timed.program_bytes > 10 << 20
    with pytest.raises(HostError, match="threads"):
        rehearse(artifact, None, 40, 100_000)
