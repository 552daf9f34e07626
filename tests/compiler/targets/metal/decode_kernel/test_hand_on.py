"""Activations that blocks hand each other in words: which, where, and that nobody waits for what is overwritten."""

import re
from dataclasses import replace

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.schedule.geometry import Geometry, StepKernelSizes
from mlxr.compiler.targets.metal.decode_kernel.step_text import StepText, step_text
from mlxr.runtime.hosts.cuda import nvrtc
from mlxr.runtime.hosts.cuda.build import with_prelude
from mlxr_tests.has_nvrtc import has_nvrtc
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.step_words import handed, stuck

SIZES = {
    "model__num_layers": 3,
    "model__vocab_size": 128,
    "model__hidden_size": 512,
    "model__mlp__intermediate_size": 768,
    "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 64},
}
BF16 = {"activation_dtype": "bf16", "cache": {"dtype": "bf16", "max_sequences": 1}, "weights": {"default": "q4_k"}}
DIGITS = Geometry.of(partition=16, matvec_mma=2, matvec_outputs=16, matvec_simdgroups=4, matvec_split=4)


def text_of(artifact: Artifact) -> StepText:
    sources = {kernel.name: artifact.kernel_text(kernel.name) for kernel in artifact.plan.first.kernels}
    weights = {weight.name for weight in artifact.plan.weights}
    return step_text(handed(artifact), sources, weights, StepKernelSizes(512))


def plain(**changed: object) -> Artifact:
    return compiled(small_spec(**SIZES, **BF16, **changed), DIGITS)


def test_a_layer_needs_no_barrier() -> None:
    program = handed(plain())
    whole = next(mask for mask in program.masks if mask & 1)
    assert not [launch for launch in program.running(whole) if launch.waits]
    split = next(mask for mask in program.masks if not mask & 1)
    assert [launch.kernel.label for launch in program.running(split) if launch.waits].count("attend_reduce") == 3
    assert len({value.version for value in program.handed.values()}) == len(program.handed) == 1 + 5 * 3
    assert len({value.home for value in program.handed.values()}) <= 6, "layers take turns in the same memory"


@pytest.mark.parametrize(
    "changed",
    [{}, {"model__tensor_names": "canonical", "model__attention__qk_norm": {"scope": "head", "eps": 1e-5}}],
    ids=["words", "barriers-at-attention"],
)
def test_no_block_waits_for_what_is_overwritten(changed: dict[str, object]) -> None:
    program = handed(plain(**changed))
    for seed in range(4):
        for mask in program.masks:
            assert stuck(program, mask, 2 + seed, seed) is None


def test_a_home_that_is_taken_too_early_is_noticed() -> None:
    """As is a barrier too few."""
    program = handed(plain())
    one_home = {name: replace(value, home=0) for name, value in program.handed.items()}
    whole = next(mask for mask in program.masks if mask & 1)
    assert any(stuck(replace(program, handed=one_home), whole, 5, seed) for seed in range(4))


@pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC; pip install nvidia-cuda-nvrtc")
def test_the_text_compiles_and_keeps_the_words_with_the_counter() -> None:
    made = text_of(plain())
    flags = ("--std=c++17", "--device-as-default-execution-space", "--gpu-architecture=compute_80", "-dlto")
    nvrtc.compile_cubin(made.name, with_prelude(made.text), flags)
    places = [int(place) & 0xFFFFF for place in re.findall(r"\{ \d+u, (\d+)u\}", made.text) if int(place) >> 20]
    assert made.words > max(places) > 0
