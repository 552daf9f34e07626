"""The kernel that draws tokens, on a card, beside NumPy."""

import ctypes

import mlx.core as mx
import numpy as np
import pytest

from mlxr.runtime.hosts.cuda.address_table import address_table
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr.runtime.hosts.cuda.device_array import on_device
from mlxr.runtime.hosts.cuda.drawing import draw_call
from mlxr.runtime.hosts.cuda.handover.pinned_memory import PinnedMemory
from mlxr.runtime.hosts.cuda.launch_graph import Event, LaunchGraph
from mlxr.runtime.hosts.cuda.mlx_stream import mlx_stream
from mlxr.runtime.hosts.likeliest import NUM_ASKED
from mlxr_tests.fake_card import drawn_of

pytestmark = pytest.mark.skipif(not has_cuda(), reason="no NVIDIA GPU")

MOST_STEPS, MOVING, STATE = 16, 512, 800
FILTERS = (
    (0.7, 0.0, 1.0, 0),
    (0.7, 0.0, 0.9, 0),
    (1.0, 0.0, 1.0, 40),
    (0.7, 0.0, 0.9, 40),
    (1.3, 0.05, 1.0, 0),
    (2.0, 0.0, 0.999, 5000),
    (1e-30, 0.0, 1.0, 0),
)
"""Temperature, min_p, top_p, top_k."""


@pytest.mark.parametrize(("rows", "width"), [(1, 128256), (3, 4100), (9, 999), (64, 32000), (130, 2048), (1, 262208)])
def test_it_draws_what_numpy_draws(rows: int, width: int) -> None:
    """Every second row has many equal weights; one takes its greatest logit, one has NaN, one nearly only -inf."""
    random = np.random.default_rng(rows)
    found = random.normal(0, 3, (rows, width)).astype(np.float32)
    found[1::2] = found[1::2].round(1)
    if rows > 3:
        found[2, width // 2], found[3] = np.nan, -np.inf
        found[3, [7, 900]] = 1, 2
    numbers = [rows, 5, 0, MOVING, 0, 0, STATE, width, MOST_STEPS, *[0] * 7]
    batch = on_device(mx.zeros((2048,), mx.uint32))
    of_batch = on_device(mx.array(np.array(numbers, np.uint32)))
    pinned, given = PinnedMemory(4 * 2 * MOST_STEPS * rows), PinnedMemory(4 * NUM_ASKED * MOST_STEPS * rows)
    seen = np.ctypeslib.as_array((ctypes.c_uint32 * (2 * MOST_STEPS * rows)).from_address(pinned.address))
    asked = np.ctypeslib.as_array((ctypes.c_uint32 * (NUM_ASKED * MOST_STEPS * rows)).from_address(given.address))
    asked = asked.reshape(MOST_STEPS, rows, NUM_ASKED)
    stream, end = mlx_stream(), Event()
    assert stream is not None
    for step in range(len(FILTERS)):
        logits = on_device(mx.array(found.reshape(-1)))
        mx.eval(logits, of_batch, batch)
        addresses = np.array(address_table([logits, of_batch, batch])).tolist()[:3]
        for row in range(rows):
            temperature, min_p, top_p, top_k = FILTERS[(step + row) % len(FILTERS)]
            of_row = np.array([random.random(), temperature, min_p, top_p], np.float32).view(np.uint32)
            asked[step, row, :6] = [*of_row, top_k, row == 4]
        call = draw_call((*addresses, pinned.seen, given.seen), rows, waits=False)
        graph = LaunchGraph([call.launch({})], [logits, of_batch, batch, pinned, given])
        graph.launch(stream, end)
        end.record(stream)
        end.wait()
        tokens, greatest = seen.reshape(2, MOST_STEPS, rows)[:, step]
        wanted = [drawn_of(found[row], *asked[step, row]) for row in range(rows) if row != 2 or rows < 4]
        np.testing.assert_array_equal([token for row, token in enumerate(tokens) if row != 2 or rows < 4], wanted)
        np.testing.assert_array_equal(greatest.view(np.float32), found.max(1))
        after = np.array(batch + 0)  # MLX moves what the CPU looks at
        np.testing.assert_array_equal(after[:rows], tokens)
        assert (after[MOVING : MOVING + 5] == step + 1).all() and after[STATE] == step + 1 and not after[STATE + 1]
