"""How ranks meet: a collective that never ends, because a rank is gone, ends the process."""

import os
import subprocess
import sys

WAITING = """
import time
import mlx.core as mx
from mlxr.runtime.parallel.meeting import share_bytes
world = mx.distributed.init()
assert share_bytes(world)(b"abc") == b"abc"
mx.distributed.all_sum = lambda *_, **__: time.sleep(60)
share_bytes(world, 0.1)(b"abc")
"""


def test_a_rank_does_not_wait_for_ever_for_one_that_is_gone() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ended = subprocess.run(
        [sys.executable, "-c", WAITING], env=environment, capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.returncode == 75 and "a rank did not meet the others within 0.1 s" in ended.stderr, ended
