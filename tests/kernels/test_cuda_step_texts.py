"""The step kernel's text compiles, with NVIDIA's own compiler, for every kind of kernel that a step may have."""

import re

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.plan.geometry import Geometry
from mlxr.runtime.hosts.cuda import nvrtc
from mlxr.runtime.hosts.cuda.step_program import step_program
from mlxr.runtime.hosts.cuda.step_text import step_text
from mlxr_tests.family_specs import ALL_SPECS, SHORT_SPECS, family_spec
from mlxr_tests.few import few
from mlxr_tests.has_nvrtc import has_nvrtc
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.storyteller import storyteller_spec
from mlxr_tests.variants import VARIANTS, variant

pytestmark = pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC; pip install nvidia-cuda-nvrtc")

FLAGS = ("--std=c++17", "--device-as-default-execution-space", "--gpu-architecture=compute_80", "-dlto")
SM_90A = (*FLAGS[:2], "--gpu-architecture=sm_90a", "--ptxas-options=-v")
SPILLS = re.compile(r"Function properties for (\w+)\n.*?(\d+) bytes spill stores")
NAME = re.compile(r"_ZN\d+(\w+?)_[0-9a-f]{8}_\d+3runEj")


def text_of(artifact: Artifact, threads: int = 512, blocks: int = 2, prefetch: int = 0) -> str:
    return step_text(artifact, step_program(artifact.plan), threads, blocks, prefetch).text


@pytest.mark.parametrize("name", few(ALL_SPECS, SHORT_SPECS))
def test_steps_of_families_compile(name: str) -> None:
    nvrtc.compile_cubin(name, text_of(compiled(family_spec(name), Geometry(partition=16))), FLAGS)


@pytest.mark.parametrize("name", VARIANTS)
def test_steps_of_variants_compile(name: str) -> None:
    nvrtc.compile_cubin(name, text_of(variant(name)), FLAGS)


@pytest.mark.parametrize("name", ["plain", "experts-shared", "gemma-like"])
def test_steps_that_ask_for_weights_ahead_compile(name: str) -> None:
    nvrtc.compile_cubin(name, text_of(compiled(family_spec(name), Geometry(partition=16)), 512, 1, 32), FLAGS)


def test_what_is_asked_for_ahead_is_whole_weights() -> None:
    artifact = variant("q4_k_m")
    program = step_program(artifact.plan)
    text = step_text(artifact, program, 512, 1, 32).text
    table = text[text.index("const uint spans[") :]
    found = [tuple(map(int, row)) for row in re.findall(r"\{ (\d+)u, (\d+)u, (\d+)u\}", table[: table.index("};")])]
    operands = [place.argument for entry in program.entries for place in entry.operands]
    wanted = {weight.name: weight.size_bytes for weight in artifact.plan.weights}
    del wanted["embedding"]  # one row, and nobody knows which
    lines = dict.fromkeys(wanted, 0)
    for operand, _, count in found:
        lines[operands[operand]] += count
    assert all(lines[name] * 128 >= size > (lines[name] - 20) * 128 for name, size in wanted.items()), (lines, wanted)


def test_the_storytellers_step_becomes_a_cubin() -> None:
    artifact = compile_spec(storyteller_spec(), targets=("metal",)).artifact
    assert nvrtc.compile_cubin("storyteller", text_of(artifact, 256, 4), SM_90A)


@pytest.mark.parametrize(("heads", "kv_heads"), few([(32, 4), (16, 8)], [(32, 4)]))
@pytest.mark.parametrize(("weights", "most"), few([("q8_0", 192), ("affine4_g64_bf16", 192)], [("q8_0", 192)]))
def test_projections_stay_in_registers(weights: str, most: int, heads: int, kv_heads: int) -> None:
    """With the geometry of an H200: one layer of TinyLlama, whose texts are those of all layers; and heads of 128."""
    changes = {
        "model__vocab_size": 32000,
        "model__hidden_size": 2048,
        "model__num_layers": 1,
        "model__context": 4096,
        "model__attention": {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": 2048 // heads},
        "model__mlp": {"intermediate_size": 5632},
        "cache": {"dtype": "bf16", "max_sequences": 1},
        "activation_dtype": "bf16",
        "weights": {"default": weights},
    }
    artifact = compile_spec(small_spec(**changes), targets=("metal",), chip=find_chip("h200")).artifact
    chosen = artifact.plan.step("decode").chosen
    assert chosen is not None and chosen.sizes["step_threads"]
    text = text_of(artifact, chosen.sizes["step_threads"], chosen.sizes["step_blocks"])
    _, said = nvrtc.compile_and_tell("step", text, SM_90A)
    spills = {found[1]: int(bytes_) for name, bytes_ in SPILLS.findall(said) if (found := NAME.match(name))}
    assert {"qkv", "attend", "attend_partition", "attend_reduce", "o", "gate_up", "down", "logits"} <= set(spills)
    for label, spilled in spills.items():
        assert spilled <= (1024 if label.startswith("attend") else most), f"{label} spills {spilled} bytes"
