"""Fixtures of the sim host's tests: run a few lines of Metal over two arrays."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mlxr.runtime.hosts.sim.kernel import SimBuffer, SimKernel

Array = np.ndarray[Any, Any]
Run = Callable[..., Array]

SIGNATURE = """[[kernel]] void planted(
    const device {input}* x [[buffer(0)]],
    device {output}* y [[buffer(1)]],
    uint3 position [[thread_position_in_grid]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {{
"""


@pytest.fixture(autouse=True)
def _compiled_as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the host's own flags."""
    monkeypatch.delenv("MLXR_SIM_CFLAGS", raising=False)


def metal_text(body: str, *, head: str = "", input: str = "float", output: str = "float") -> str:
    """A standalone kernel named `planted` with this body, which begins on line 13."""
    start = f"#include <metal_stdlib>\nusing namespace metal;\n{head}\n\n"
    return start + SIGNATURE.format(input=input, output=output) + body + "\n}\n"


@pytest.fixture
def run() -> Run:
    """Runs a body once: `x` is the input, `y` the output, which is returned."""

    def run_body(
        body: str,
        x: Array | None = None,
        y: Array | None = None,
        *,
        head: str = "",
        input: str = "float",
        output: str = "float",
        groups: Sequence[int] = (1, 1, 1),
        threads: Sequence[int] = (32, 1, 1),
        writable_input: bool = False,
        seed: int = 0,
    ) -> Array:
        kernel = SimKernel.load(metal_text(body, head=head, input=input, output=output))
        x = np.arange(64, dtype=np.float32) if x is None else x
        y = np.zeros(64, dtype=np.float32) if y is None else y
        buffers = [SimBuffer.of(x, writable=writable_input, name="x"), SimBuffer.of(y, writable=True, name="y")]
        kernel.launch(buffers, tuple(groups), tuple(threads), seed=seed)  # type: ignore[arg-type]
        return y

    return run_body
