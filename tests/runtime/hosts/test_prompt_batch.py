"""The batch of one prompt that is packed as it is made is the one that is made by steps."""

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.errors import ArenaFullError, RequestError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest, Rows
from mlxr.runtime.hosts.binding import batch_dims
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr.runtime.hosts.cuda.packed import Packed
from mlxr.runtime.hosts.mlx.padding import padded_batch
from mlxr_tests.fake_card import Sums, use_card
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.specs import compiled, small_spec

pytestmark = pytest.mark.skipif(has_cuda(), reason="the card is a fake one")

STEPS: list[tuple[int, int, Rows]] = [(0, 5, "none"), (1, 17, "last"), (0, 2, "none"), (0, 33, "last"), (1, 16, "last")]
"""Sequences, how many tokens they get, and rows of logits."""
CACHE = {"mode": "paged", "block_size": 4, "max_sequences": 2, "num_blocks": 40}


def host_of(monkeypatch: pytest.MonkeyPatch, **changes: object) -> CudaHost:
    spec = small_spec(**{"cache": CACHE, "model__context": 90, "prefill_chunk": 80} | changes)
    artifact = compiled(spec, Geometry.of(chunk_padding=16))
    use_card(monkeypatch, artifact, Sums())
    return CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))


@pytest.mark.parametrize("with_lengths", [False, True])
def test_it_is_the_batch_that_is_filled_up_later(monkeypatch: pytest.MonkeyPatch, with_lengths: bool) -> None:
    host = host_of(monkeypatch)
    if with_lengths:
        host._read["prefill"].add("context_lens")
    pagers = [Pager.from_geometry(host.plan.arena) for _ in range(2)]
    ids = [[pager.add_sequence() for _ in range(2)] for pager in pagers]
    for sequence, count, rows in STEPS:
        requests = [
            BatchRequest(own[sequence], [*range(3, 3 + count)], pager.length(own[sequence]), rows)
            for own, pager in zip(ids, pagers, strict=True)
        ]
        made = host.batch_of(requests[:1], pagers[0])
        plain = padded_batch(Batch.build(requests[1:], pagers[1], host.plan.query_tile), host.plan)
        assert made.packed is not None and plain.packed is None
        packed = Packed.of(host.arrays_of(host.program.phase("prefill"), plain))  # type: ignore[arg-type]  # no lazy ids
        np.testing.assert_array_equal(made.packed.numbers, packed.numbers)
        assert made.packed.places == packed.places and [*made.packed.places] == [*packed.places]
        assert batch_dims(made) == batch_dims(plain)
        for name, array in vars(plain).items():
            if isinstance(array, np.ndarray):
                np.testing.assert_array_equal(getattr(made, name), array, err_msg=name)
    for pager in pagers:
        pager.check_integrity()


def test_others_are_made_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_of(monkeypatch)
    pager = Pager.from_geometry(host.plan.arena)
    first, second = pager.add_sequence(), pager.add_sequence()
    several = [BatchRequest(first, [3, 4], 0, "last"), BatchRequest(second, [5, 6, 7], 0, "last")]
    assert host.batch_of(several, pager).packed is None
    assert host.batch_of([BatchRequest(first, [3, 4], 2, "all")], pager).packed is None
    assert host.batch_of([BatchRequest(first, [3], 4, "none")], pager).packed is None
    assert host.batch_of([BatchRequest(first, [0, 0], 5)], pager, mx.array([3, 4], mx.int32)).packed is None
    with pytest.raises(RequestError, match="starts at position 5"):
        host.batch_of([BatchRequest(second, [3, 4], 5)], pager)
    with pytest.raises(RequestError, match="token id 4294967296"):
        host.batch_of([BatchRequest(second, [3, 1 << 32], 3)], pager)
    pager.append(first, 80)
    with pytest.raises(ArenaFullError):
        host.batch_of([BatchRequest(second, [3] * 78, 3)], pager)
    assert pager.length(second) == 3, "nothing has been appended"
