"""A small model with experts, its weights in a file, and a fake card that leaves some of them to the CPU."""

import ctypes
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from mlxr.compiler.artifact import Artifact, HandoverLayout, ModelSpec
from mlxr.compiler.driver import compile_spec
from mlxr.runtime.hosts.cuda.handover import card_handover
from mlxr.runtime.hosts.handover import ANSWERED_AT, BLOCKS, STEP_AT
from mlxr_tests.fake_card import SimLauncher, use_card
from mlxr_tests.fake_driver import FakeDriver, use_driver
from mlxr_tests.specs import small_spec

EXPERTS: dict[str, Any] = {
    "count": 6,
    "per_token": 2,
    "router": "softmax_topk",
    "shared": {"intermediate_size": 40, "gate": True},
}


def spec_with_experts(layers_on_cpu: int, **changes: Any) -> ModelSpec:
    """Three layers, in f32; of the first so many, the experts are on the CPU."""
    mlp = {"intermediate_size": 64, "experts": EXPERTS}
    return small_spec(
        **{"model__num_layers": 3, "model__mlp": mlp, "model__tensor_names": "canonical"} | changes,
        experts_on_cpu=layers_on_cpu,
    )


def file_with_experts(folder: Path) -> Path:
    """Random weights of the model, which keep activations near 1."""
    rng, tensors = np.random.default_rng(7), {}
    for weight in compile_spec(spec_with_experts(0), targets=("metal",)).artifact.plan.weights:
        for part in weight.parts:
            numbers = rng.standard_normal(part.shape, np.float32)
            if len(part.shape) == 1:
                numbers = 1 + 0.3 * numbers
            elif part.name != "embedding":
                numbers *= part.shape[-1] ** -0.5
            tensors[part.name] = numbers.astype(np.float32)
    path = folder / "experts.safetensors"
    save_file(tensors, path)
    return path


class CardWithCpu(SimLauncher):
    """Sim executes a card's launches at once, and this the kernels that hand over to the CPU.

    Attributes:
        driver: allocates what it and the CPU see.
        given, taken: how often each kernel ran.
    """

    def __init__(self, artifact: Artifact, driver: FakeDriver) -> None:
        super().__init__(artifact)
        self.driver = driver
        self.layout = HandoverLayout.of(artifact.plan)
        self.given = self.taken = 0

    def __call__(self, **launch: Any) -> list[mx.array]:
        """Runs a launch."""
        name, scalars, inputs = launch["name"], launch.get("scalars"), launch["inputs"]
        if name.startswith("give_routed_"):
            return [self._give(inputs, *scalars)]
        if name.startswith("take_sum_"):
            return [self._take(inputs, launch["output_shapes"][0], launch["output_dtypes"][0], *scalars)]
        return super().__call__(**launch)

    def _give(
        self, inputs: Sequence[mx.array], count: int, chosen: int, tokens: int, program: int, place: int, weighs: int
    ) -> mx.array:
        x, experts, weights, places = inputs
        memory, numbers = self._seen(places)
        layout = self.layout
        _put(memory, layout.x_at, np.array(x.astype(mx.float32)).reshape(-1)[:count])
        _put(memory, layout.experts_at, np.array(experts).reshape(-1)[:chosen])
        if weighs:
            _put(memory, layout.weights_at, np.array(weights).reshape(-1)[:chosen])
        _put(memory, STEP_AT, np.array([tokens, program, place], np.int32))
        numbers[:BLOCKS] += 1
        _put(memory, 0, numbers[:BLOCKS])
        self.given += 1
        return mx.array(numbers[:8])

    def _take(
        self, inputs: Sequence[mx.array], shape: tuple[int, ...], dtype: mx.Dtype, count: int, adds: int, scale: float
    ) -> mx.array:
        after, residual, places = inputs
        memory, numbers = self._seen(places)
        mx.eval(after)
        numbers[BLOCKS:] += 1
        answered = memory[ANSWERED_AT:].view(np.uint32)
        while answered[0] != numbers[BLOCKS]:
            time.sleep(0)
        total = memory[self.layout.sum_at :][: 4 * count].view(np.float32).copy()
        if adds:
            total = np.array(residual.astype(mx.float32)).reshape(-1)[:count] + scale * total
        self.taken += 1
        return mx.array(total).astype(dtype).reshape(shape)

    def _seen(self, places: mx.array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint32]]:
        memory, numbers = (int(address) for address in np.array(places).view(np.uint64))
        size = self.layout.size_bytes
        return (
            np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(memory)),
            np.ctypeslib.as_array((ctypes.c_uint32 * (2 * BLOCKS)).from_address(numbers)),
        )


def _put(memory: npt.NDArray[np.uint8], at: int, numbers: npt.NDArray[Any]) -> None:
    data = np.ascontiguousarray(numbers).view(np.uint8)
    memory[at : at + data.size] = data


def use_card_and_cpu(monkeypatch: pytest.MonkeyPatch, artifact: Artifact) -> CardWithCpu:
    """Makes MLX look as if it had a card, whose memory the CPU sees."""
    card = CardWithCpu(artifact, use_driver(monkeypatch))
    use_card(monkeypatch, artifact, card)
    monkeypatch.setattr(card_handover, "build_cubin", lambda *_: b"")
    return card
