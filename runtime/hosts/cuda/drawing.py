"""The launch that draws the tokens of a recorded step's rows, as far as they ask for that.

It stands where the launch stands that takes the likeliest tokens (recorded_batch.py), and prepares the step after, too.
What rows ask for, its kernel reads from the machine's memory: templates/hosts/draw_on_cuda.cuh says how it draws.
"""

import functools
from collections.abc import Sequence
from importlib.resources import files

from mlxr.runtime.hosts.cuda.build import build_cubin
from mlxr.runtime.hosts.cuda.device import architecture
from mlxr.runtime.hosts.cuda.recorded_calls import Call, Operand

DRAW = "mlxr_draw"
_THREADS = 512
_AMPERE, _HOPPER = 80, 90
_MOST_GROUPS, _MOST_OF_ROW = 1024, 8
_OF_GROUP, _OF_ROW = 2560 * 128, 1 << 19
"""The longest part of a row that a threadgroup takes, and the longest row whose weights have a sum of 63 bits."""


def draw_call(operands: Sequence[Operand], rows: int, *, waits: bool) -> Call:
    """The launch.

    Args:
        operands: of the kernel.
        rows: how many.
        waits: see `GraphLaunch`.
    """
    cluster = cluster_of(rows)
    return Call(DRAW, draw_image(), (rows * cluster, 1, 1), _THREADS, operands, waits=waits, cluster=cluster)


def cluster_of(rows: int) -> int:
    """How many threadgroups have a row together; cards before Hopper have no clusters."""
    if _generation() < _HOPPER:
        return 1
    size = _MOST_OF_ROW
    while size > 1 and size * rows > _MOST_GROUPS:
        size //= 2
    return size


def can_draw(rows: int, width: int) -> bool:
    """Whether this card can, and there is room for what the kernel notes of rows with so many logits."""
    return _generation() >= _AMPERE and width <= min(_OF_GROUP * cluster_of(rows), _OF_ROW)


def _generation() -> int:
    return int(architecture().removeprefix("sm_").rstrip("a"))


@functools.cache
def draw_image() -> bytes:
    """The kernel's image.

    Raises:
        HostError: it does not compile.
    """
    text = files("mlxr.templates").joinpath("hosts/draw_on_cuda.cuh").read_text("utf-8")
    return build_cubin("mlxr_draw", text, architecture())
