"""A program that is compiled with a clock tells how long each call took; without one it has none."""

from time import perf_counter

import pytest

import mlxr
from mlxr.runtime.hosts.cpu.host import CpuHost, open_library
from mlxr_tests.storyteller import TINY


@pytest.mark.long
def test_each_call_has_a_time_and_answers_stay_the_same() -> None:
    model = mlxr.load(TINY, host="cpu", threads=2)
    host = model.host
    assert isinstance(host, CpuHost)
    before = model.generate("Once upon a time", max_tokens=20).text
    begun = perf_counter()
    timed = host.time_calls()
    microseconds = (perf_counter() - begun) * 1e6
    for phase in model.artifact.plan.program("cpu").phases:
        told = timed[phase.name]
        assert len(told.times_us) == len(phase.launches) and told.threads == 2
        assert all(time > 0 for time in told.times_us), "all run: each step had rows of logits"
        assert 0 < sum(told.times_us) <= microseconds
    assert model.generate("Once upon a time", max_tokens=20).text == before
    assert open_library(model.artifact, shows_progress=False).times is None, "no clock where none is asked for"
