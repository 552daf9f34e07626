"""Gives the CPU what experts read, and takes their sums, by two kernels of our own: no launch waits, so steps queue.

The kernels' text is templates/hosts/handover_on_cuda.cuh.
"""

import ctypes
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import PHASES, HandoverCall, HandoverLayout, PhaseName, Plan
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.hosts.cuda.build import build_cubin
from mlxr.runtime.hosts.cuda.device import architecture
from mlxr.runtime.hosts.cuda.device_array import on_device
from mlxr.runtime.hosts.cuda.handover.pinned_memory import PinnedMemory
from mlxr.runtime.hosts.cuda.parallel.peer_memory import PeerMemory
from mlxr.runtime.hosts.handover import (
    ANSWERED_AT,
    BLOCKS,
    STEP_AT,
    ExpertsBeside,
    LazyHandover,
)
from mlxr.runtime.hosts.mlx.bindable import bindable_shape

_THREADS = 512
_TIMEOUT_NS = 120_000_000_000
_TYPES = {mx.float32: "float", mx.float16: "__half", mx.bfloat16: "__nv_bfloat16"}


def kernel_text(dtype: mx.Dtype, layout: HandoverLayout) -> str:
    """The two kernels for rows of a type, in CUDA, without their names."""
    macros = {
        "TYPE": _TYPES[dtype],
        "THREADS": _THREADS,
        "BLOCKS": BLOCKS,
        "TIMEOUT_NS": f"{_TIMEOUT_NS}ull",
        "STEP_AT": STEP_AT,
        "ANSWERED_AT": ANSWERED_AT,
        "X_AT": f"{layout.x_at}ull",
        "EXPERTS_AT": f"{layout.experts_at}ull",
        "WEIGHTS_AT": f"{layout.weights_at}ull",
        "SUM_AT": f"{layout.sum_at}ull",
    }
    defined = "".join(f"#define {macro} {value}\n" for macro, value in macros.items())
    return defined + files("mlxr.templates").joinpath("hosts/handover_on_cuda.cuh").read_text("utf-8")


def kernel_names(text: str) -> tuple[str, str]:
    """The names of the kernels of a text: MLX knows kernels by their names."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"give_routed_{digest}", f"take_sum_{digest}"


def with_names(text: str) -> str:
    """The text of the kernels, complete."""
    give, take = kernel_names(text)
    return f"#define GIVE {give}\n#define TAKE {take}\n{text}"


class CardHandover(LazyHandover):
    """The card's end."""

    def __init__(self, plan: Plan, experts: ExpertsBeside) -> None:
        """Allocates the memory and compiles the kernels.

        Args:
            plan: the card's.
            experts: the CPU's part.

        Raises:
            HostError: the driver refuses, or the kernels cannot be compiled.
        """
        self._experts, self._layout = experts, HandoverLayout.of(plan)
        self._waits = list[Callable[[], object]]()
        self._memory, self._numbers = PinnedMemory(self._layout.size_bytes, self._waits), PeerMemory(BLOCKS * 4)
        addresses = np.array([self._memory.seen, self._numbers.address], np.uint64)
        self._places = on_device(mx.array(addresses.view(np.uint32)))
        self._dtype = MLX_DTYPES[str(plan.first.types.activations)]
        text = kernel_text(self._dtype, self._layout)
        self._give, self._take = kernel_names(text)
        self._image = build_cubin(self._give, with_names(text), architecture())
        experts.attach(self._memory, self._layout)

    def begin(self) -> None:
        """See `LazyHandover`."""
        self._experts.begin()

    def follow(self, token: mx.array) -> None:
        """See `LazyHandover`."""
        self._waits[:] = [partial(mx.eval, token)]

    def give(self, call: HandoverCall, phase: PhaseName, inputs: Mapping[str, mx.array], tokens: int) -> mx.array:
        """See `LazyHandover`."""
        (top_k,) = (port.shape[1] for port in call.ports if port.name == "experts")
        assert isinstance(top_k, int), "only rows have symbolic dims"
        numbers = (tokens * call.width, tokens * top_k, tokens, PHASES.index(phase), call.place)
        weights = inputs.get("weights", inputs["experts"])
        bound = [inputs["x"], inputs["experts"], weights, self._places]
        return self._launch(self._give, bound, [*numbers, int("weights" in inputs)], (8,), mx.uint32)

    def take(self, call: HandoverCall, inputs: Mapping[str, mx.array], tokens: int) -> mx.array:
        """See `LazyHandover`."""
        numbers = [tokens * call.width, int("residual" in inputs), float(call.residual_scale)]
        bound = [inputs["after"], inputs.get("residual", inputs["after"]), self._places]
        shape = bindable_shape((tokens, call.width))
        return self._launch(self._take, bound, numbers, shape, self._dtype)

    def _launch(
        self,
        name: str,
        inputs: Sequence[mx.array],
        numbers: Sequence[int | float],
        shape: tuple[int, ...],
        dtype: mx.Dtype,
    ) -> mx.array:
        (out,) = mx.fast.precompiled_cuda_kernel(
            name=name,
            compiled_source=self._image,
            inputs=list(inputs),
            output_shapes=[shape],
            output_dtypes=[dtype],
            scalars=list(numbers),
            grid=(_THREADS * BLOCKS, 1, 1),
            threadgroup=(_THREADS, 1, 1),
            ensure_row_contiguous=False,
        )
        return out

    def recover(self) -> None:
        """Begins anew after a step that has failed; nothing runs on the card."""

        def clear() -> None:
            ctypes.memset(self._memory.address, 0, self._layout.x_at)
            self._numbers.clear()

        self._waits.clear()
        self._experts.reset(clear)

    def close(self) -> None:
        """See `LazyHandover`; the memory that the CPU sees, the experts free."""
        with suppress(RuntimeError, ValueError):  # after a launch that failed, nothing is freed
            for wait in self._waits:
                wait()
            self._numbers.free()
