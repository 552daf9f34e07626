"""The kernel that takes the likeliest tokens, on a card, beside NumPy."""

import ctypes
from itertools import product

import mlx.core as mx
import numpy as np
import pytest

from mlxr.runtime.hosts.cuda.address_table import address_table
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr.runtime.hosts.cuda.device_array import on_device
from mlxr.runtime.hosts.cuda.handover.pinned_memory import PinnedMemory
from mlxr.runtime.hosts.cuda.launch_graph import FUNCTIONS, Event, GraphLaunch, LaunchGraph
from mlxr.runtime.hosts.cuda.mlx_stream import mlx_stream
from mlxr.runtime.hosts.cuda.recorded_batch import CHOOSE, CHOOSE_THREADS, choosing_grid, recorded_image

pytestmark = pytest.mark.skipif(not has_cuda(), reason="no NVIDIA GPU")

MOST_STEPS, MOVING, STATE, WORDS = 16, 512, 800, 1024
SIZES = ((1, 128256), (3, 4100), (5, 999), (64, 32000))


def logits_of(rows: int, width: int) -> np.ndarray:
    """Many are equal; a row may have nothing but -inf, NaN in several places, both zeros, or +inf."""
    found = np.random.default_rng(rows).normal(0, 3, (rows, width)).astype(np.float32).round(1)
    if rows > 2:
        found[0], found[0, 3:5] = -1, (-0.0, 0.0)
        found[1] = -np.inf
        found[2, [5, width // 2, width - 1]] = np.nan
    if rows > 3:
        found[3, 100:200] = np.inf
    return found


@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_it_takes_the_first_of_the_greatest(rows: int, width: int) -> None:
    found = logits_of(rows, width)
    likeliest = np.where(np.isnan(found).any(1), np.isnan(found).argmax(1), found.argmax(1))
    greatest = found[np.arange(rows), likeliest]
    numbers = [rows, 5, 0, MOVING, 0, 0, STATE, width, MOST_STEPS, rows * width, WORDS, *[0] * 5]
    arrays = [
        on_device(mx.array(each))
        for each in (found.reshape(-1), np.array(numbers, np.uint32), np.zeros(2048, np.uint32))
    ]
    mx.eval(*arrays)
    addresses, pinned = np.array(address_table(arrays)).tolist()[:3], PinnedMemory(4 * 2 * MOST_STEPS * rows)
    seen = np.ctypeslib.as_array((ctypes.c_uint32 * (2 * MOST_STEPS * rows)).from_address(pinned.address))
    stream, end = mlx_stream(), Event()
    assert stream is not None
    for step, (parts, _) in enumerate(product((choosing_grid(rows, width)[1], 1, 7), range(2))):
        launch = GraphLaunch(
            FUNCTIONS.of(CHOOSE, recorded_image()), (rows, parts, 1), CHOOSE_THREADS, [*addresses, pinned.seen]
        )
        graph = LaunchGraph([launch], [arrays, pinned])
        graph.launch(stream, end)
        end.record(stream)
        end.wait()
        chosen = seen.reshape(2, MOST_STEPS, rows)[:, step]
        batch = np.array(arrays[2] + 0)  # MLX moves what the CPU looks at
        np.testing.assert_array_equal(chosen[0], likeliest)
        np.testing.assert_array_equal(batch[:rows], likeliest)
        np.testing.assert_array_equal(chosen[1].view(np.float32), greatest)
        assert (batch[MOVING : MOVING + 5] == step + 1).all() and not batch[WORDS:].any()
