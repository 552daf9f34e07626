"""The kernel that draws tokens, whose text a CPU executes, beside NumPy."""

import ctypes
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from mlxr.runtime.hosts.cuda import drawing
from mlxr.runtime.hosts.cuda.drawing import can_draw, cluster_of
from mlxr.runtime.hosts.likeliest import NUM_ASKED
from mlxr_tests.fake_card import draw
from mlxr_tests.few import few
from mlxr_tests.shared_library import shared_library

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="fibers are those of glibc")
MOST_STEPS, STEP, MOVING, AHEAD, STATE = 16, 21, 300, 340, 400
OPTIONS = [
    (0.7, 0.0, 0.9, 0),
    (1.0, 0.0, 1.0, 40),
    (1.3, 0.05, 1.0, 0),
    (0.7, 0.0, 1.0, 0),
    (1.5, 0.0, 0.8, 40),
    (1e-30, 0.0, 1.0, 0),
    (2.0, 0.0, 0.9999, 5000),
    (1.0, 0.0, 0.0, 1),
    (1.0, 1.0, 1.0, 0),
    (0.7, 0.0, 1.0, 0),
]
"""Temperature, min_p, top_p, top_k."""


@pytest.mark.parametrize(
    ("architecture", "rows", "size", "longest"),
    [
        ("sm_90a", 1, 8, 1 << 19),
        ("sm_120a", 200, 4, 1 << 19),
        ("sm_90a", 2000, 1, 327680),
        ("sm_89", 1, 1, 327680),
        ("sm_75", 1, 1, 0),
    ],
)
def test_threadgroups_of_a_row(
    architecture: str, rows: int, size: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "architecture", lambda: architecture)
    assert cluster_of(rows) == size and can_draw(rows, longest) == bool(longest) and not can_draw(rows, longest + 1)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source, target = Path(__file__).with_name("cluster_driver.cpp"), tmp_path_factory.mktemp("draw") / "draw.so"
    headers = str(files("mlxr.templates").joinpath("hosts"))
    return shared_library(source, target, "-Wno-everything", "-I", headers)


def logits_of(kind: str, rows: int, width: int) -> np.ndarray:
    random = np.random.default_rng(width)
    found = random.normal(0, 4, (rows, width)).astype(np.float32)
    if kind == "equal":
        found = found.round()
        found[3] = np.minimum(found[3], 0)
        found[3, :3] = -1, -0.0, 0.0  # the first of these zeros is the greatest
    elif kind == "same":
        found[...] = 1
    elif kind == "masked":
        found[random.random((rows, width)) < 0.7] = -np.inf
        found[:, width // 3] = 2
    elif kind == "broken":
        found[0, width // 2], found[1, 5], found[2, 7] = np.nan, np.inf, -np.nan
    return found


@pytest.mark.parametrize(
    ("kind", "width", "size"),
    few(
        [
            (kind, width, size)
            for kind in ("plain", "equal", "same", "masked", "broken")
            for width, size in ((128, 1), (203, 4), (1003, 2), (2052, 4), (8403, 1), (5000, 8))
        ],
        [("equal", 203, 4), ("broken", 203, 4), ("same", 1003, 2), ("equal", 1003, 2), ("plain", 8403, 1)],
    ),
)
def test_it_draws_what_numpy_draws(library: ctypes.CDLL, kind: str, width: int, size: int) -> None:
    rows = len(OPTIONS)
    found = logits_of(kind, rows, width)
    numbers, batch = np.zeros(16, np.uint32), np.zeros(500, np.uint32)
    numbers[[1, 3, 5, 6, 7, 8]] = 5, MOVING, AHEAD, STATE, width, MOST_STEPS
    batch[STATE], batch[MOVING : MOVING + 5] = STEP, range(5)
    batch[STATE + 2], batch[AHEAD : AHEAD + 10] = 10, range(50, 60)  # what moves is told of the next step alone
    asked = np.zeros((MOST_STEPS, rows, NUM_ASKED), np.uint32)
    border = np.resize([np.nextafter(np.float32(1), 0), 0.5, 0.0], rows)
    for uniforms in (np.random.default_rng(1).random(rows), border):
        for row, (options, uniform) in enumerate(zip(OPTIONS, uniforms, strict=True)):
            floats = np.array([uniform, *options[:3]], np.float32)
            asked[int(batch[STATE]) % MOST_STEPS, row, :6] = [*floats.view(np.uint32), options[3], row == 3]
        own = [found.copy(), numbers, batch.copy(), np.zeros((2, MOST_STEPS, rows), np.uint32)]
        wanted = [found.view(np.uint32).copy().reshape(-1), numbers, batch.copy(), own[3].copy()]
        draw(*wanted, asked)
        places = [each.ctypes.data_as(ctypes.c_void_p) for each in (*own, asked)]
        library.draw(*places, rows, size)
        if kind == "broken":  # which NaN it is does not matter
            np.testing.assert_array_equal(own[3][1].view(np.float32), wanted[3][1].view(np.float32))
        else:
            np.testing.assert_array_equal(own[3], wanted[3])
        np.testing.assert_array_equal(own[2], wanted[2])
        batch = own[2]
