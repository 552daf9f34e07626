"""Blocks of the arena go to bytes and back on each host; tests/kernels/test_copy_blocks.py tests the kernel itself."""

from typing import Any

import numpy as np
import pytest

from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.cuda import device
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr_tests.arenas import check_block_io
from mlxr_tests.fake_card import SimLauncher, use_card
from mlxr_tests.family_specs import family_spec
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.host_pair import HostPair
from mlxr_tests.specs import compiled, small_spec

CACHES: list[dict[str, Any]] = [
    {"layout": "block", "dtype": "bf16", "block_size": 4, "max_sequences": 2},
    {"layout": "layer", "dtype": "q8", "block_size": 2, "max_sequences": 2},
    {"layout": "block", "dtype": "q4", "block_size": 2, "max_sequences": 2},
    {"layout": "layer", "dtype": "f32", "block_size": 16, "max_sequences": 1, "mode": "contiguous"},
]


def test_cpu() -> None:
    check_block_io(HostPair(compiled(small_spec(), target="cpu")).host)


@pytest.mark.parametrize("cache", CACHES, ids=lambda cache: f"{cache['layout']}-{cache['dtype']}")
@pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")
def test_mlx_hosts(cache: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(small_spec(cache=cache, model__attention={"num_heads": 6, "num_kv_heads": 2, "head_dim": 64}))
    use_card(monkeypatch, artifact, SimLauncher(artifact))
    host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
    check_block_io(host)
    if cache["max_sequences"] > 1:
        before = host.read_blocks([3])
        host.copy_blocks([(3, 0)])
        assert (host.read_blocks([0]) == before).all(), "a read waits for the launches before it"


@pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")
def test_stages_without_keys_or_without_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first layer has attention, the second one keeps a state: of the other, a stage has no bytes."""
    cache = {"dtype": "f32", "block_size": 4, "max_sequences": 2, "mode": "paged"}
    whole = compiled(family_spec("delta", cache=cache, parallel={"pipeline": 2}))
    for rank, empty, full in ((0, None, 0), (1, 0, None)):
        artifact = whole.of_rank(rank)
        use_card(monkeypatch, artifact, SimLauncher(artifact))
        host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
        assert host.read_blocks([2, 0], empty).shape == (2, 0)
        host.write_blocks([2, 0], np.empty((2, 0), np.uint8), empty)
        data = np.random.default_rng(rank).integers(0, 256, host.read_blocks([1, 3], full).shape, np.uint8)
        host.write_blocks([3, 1], data, full)
        assert data.shape[1] and (host.read_blocks([3, 1], full) == data).all()
        assert not host.read_blocks([0, 2], full).any(), "no others are written"
