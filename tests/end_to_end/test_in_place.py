"""The arena is written where it lies: no copy of it is ever made."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

import mlxr
from mlxr_tests.arena_steps import NUM_STEPS
from mlxr_tests.few import few

QUICK = {"MLXR_CPU_CFLAGS": "-Og -Dalways_inline="}
"""Memory does not depend on how well the C is optimised."""


def figures(*arguments: str) -> dict[str, Any]:
    """What the steps took, in a fresh process."""
    result = subprocess.run(
        [sys.executable, "-m", "mlxr_tests.arena_steps", *arguments],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "MLXR_CPU_CFLAGS": "-Og -Dalways_inline="},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["arena_bytes"] == 384 * 2**20
    return found


@pytest.mark.parametrize("host", few(["sim", "cpu"], ["cpu"]))
def test_200_queued_steps_make_no_copy_of_the_arena(host: str) -> None:
    found = figures(host)
    one_copy = found["arena_bytes"] // 2
    assert found["mlx_growth_bytes"] < one_copy // 4
    assert found["rss_growth_bytes"] < one_copy // 4
    assert found["is_in_place"]
    if host == "cpu":
        assert found["rss_of_one_step_bytes"] < found["arena_bytes"] * 2 // 3, "an arena takes memory as it is used"
    if host == "sim":
        assert found["accesses"] == NUM_STEPS * found["num_layers"], "each access of the arena adds one to its token"
    assert found["launches"] >= NUM_STEPS * 5 * found["num_layers"]


@pytest.mark.long
@pytest.mark.parametrize("host", ["sim", "cpu"])
def test_a_copy_would_show_in_the_resident_size(host: str) -> None:
    found = figures(host, "--copy")
    assert found["rss_growth_bytes"] >= found["arena_bytes"] // 2 * 3 // 4


@pytest.mark.long
def test_a_copy_by_mlx_would_show_in_its_peak(storyteller: Callable[[str, str], mlxr.Model]) -> None:
    arena = storyteller("sim", "q8_0").arena
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    copy = arena.stores["k_arena"] + 0
    mx.eval(copy)
    assert mx.get_peak_memory() - before >= arena.geometry.size_bytes // 2
