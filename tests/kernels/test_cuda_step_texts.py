"""The step kernel's text compiles, with NVIDIA's own compiler, for every kind of kernel that a step may have."""

import re
from importlib.resources import files
from typing import Any

import pytest

from mlxr.compiler.artifact import Artifact, Extent, decode_dims
from mlxr.compiler.artifact.geometry_rule import GeometryRule
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.schedule.geometry import Geometry, StepKernelSizes
from mlxr.compiler.targets.metal.decode_kernel.make_step_program import ONE_SEQUENCE, step_classes
from mlxr.compiler.targets.metal.decode_kernel.step_text import grid_axis
from mlxr.runtime.hosts.cuda import nvrtc
from mlxr.runtime.hosts.cuda.build import with_prelude
from mlxr_tests.family_specs import ALL_SPECS, SHORT_SPECS, family_spec
from mlxr_tests.few import few
from mlxr_tests.has_nvrtc import has_nvrtc
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.step_texts import text_of
from mlxr_tests.storyteller import storyteller_spec
from mlxr_tests.variants import VARIANTS, variant

pytestmark = pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC; pip install nvidia-cuda-nvrtc")

FLAGS = ("--std=c++17", "--device-as-default-execution-space", "--gpu-architecture=compute_80", "-dlto")
SM_90A = (*FLAGS[:2], "--gpu-architecture=sm_90a", "--ptxas-options=-v")
WIDE: dict[str, Any] = {
    "model__hidden_size": 64,
    "model__attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32},
    "model__mlp": {"intermediate_size": 96},
}
SPILLS = re.compile(r"Function properties for (\w+)\n.*?(\d+) bytes spill stores")
NAME = re.compile(r"_ZN\d+(\w+?)_[0-9a-f]{8}_\d+3runEj")


def cuda_text(artifact: Artifact, threads: int = 512, blocks: int = 2, counts: range = ONE_SEQUENCE) -> str:
    return with_prelude(text_of(artifact, StepKernelSizes(threads, blocks=blocks), counts).text)


@pytest.mark.parametrize("name", ["addresses", "recorded", "beside_products"])
def test_what_stands_around_a_step_compiles(name: str) -> None:
    text = files("mlxr.templates").joinpath(f"hosts/{name}_on_cuda.cuh").read_text("utf-8")
    nvrtc.compile_cubin(name, text, FLAGS)


@pytest.mark.parametrize("name", few(ALL_SPECS, SHORT_SPECS[::4]))
def test_steps_of_families_compile(name: str) -> None:
    nvrtc.compile_cubin(name, cuda_text(compiled(family_spec(name), Geometry.of(partition=16))), FLAGS)


WHOLE = [name for name, (spec, *_) in VARIANTS.items() if spec.parallel is None and not spec.model.is_encoder]


@pytest.mark.parametrize("name", few(WHOLE, WHOLE[::7]))
def test_steps_of_variants_compile(name: str) -> None:
    """Of whole models that decode: a rank's launches are run one by one, with collectives between them."""
    nvrtc.compile_cubin(name, cuda_text(variant(name)), FLAGS)


def test_steps_of_a_rank_compile() -> None:
    """With sums inside, of one sequence and of several."""
    spec = small_spec(cache={"dtype": "bf16", "max_sequences": 3}, activation_dtype="bf16", parallel={"tensor": 2})
    artifact = compiled(spec, Geometry.of(partition=16, step_rank_threads=512, step_sequences=3)).of_rank(1)
    for entry in artifact.plan.first.step_kernels:
        nvrtc.compile_cubin(entry.name, with_prelude(artifact.files[entry.file]), FLAGS)


def test_steps_of_several_sequences_compile_and_read_their_grids() -> None:
    """As a chip's table has them: 1, 2 to 8, 9 to 15, 16 and more sequences take other kernels."""
    cache = {"dtype": "bf16", "max_sequences": 20}
    spec = small_spec(activation_dtype="bf16", cache=cache, weights={"default": "bf16"}, **WIDE)
    artifact = compiled(spec, Geometry.of(partition=16, mma_min_rows=2, mma_max_rows=16, attend_many=16))
    classes = step_classes(artifact.plan.first, 20)
    assert len(classes) > 3
    for counts in classes:
        text = cuda_text(artifact, 512, 1, counts)
        assert ("mlxr_dims[" in text) == (len(counts) > 1), counts
        nvrtc.compile_cubin(f"step_{counts[0]}", text, FLAGS)


@pytest.mark.parametrize("extent", [Extent(times=7), Extent(times=3, dim="tokens", per=8), Extent(dim="rows")])
def test_grids_in_the_text_are_those_of_the_plan(extent: Extent) -> None:
    for count in (1, 8, 9, 17):
        dims = decode_dims(count, 5)
        values = [dims[dim] for dim in ("tokens", "seqs", "rows", "tiles")]
        text = re.sub(r"(\d)u", r"\1", grid_axis(extent)).replace("/", "//")
        assert eval(text, {"mlxr_dims": values}) == extent.value(dims)


def test_the_storytellers_step_becomes_a_cubin() -> None:
    artifact = compile_spec(storyteller_spec(), targets=("metal",)).artifact
    assert nvrtc.compile_cubin("storyteller", cuda_text(artifact, 256, 4), SM_90A)


@pytest.mark.long
@pytest.mark.parametrize(("heads", "kv_heads"), few([(32, 4), (16, 8)], [(32, 4)]))
@pytest.mark.parametrize(
    ("weights", "most"), few([("q8_0", 192), ("affine4_g64_bf16", 192), ("q4_k", 192), ("q6_k", 192)], [("q8_0", 192)])
)
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
    chip, as_one = find_chip("h200"), {"step_threads": 512, "step_sequences": 1}
    rule = GeometryRule(sizes=as_one, labels=("step",), because="also where launches are faster", origin="predicted")
    chip = chip.model_copy(update={"geometry": (*chip.geometry, rule)})
    artifact = compile_spec(small_spec(**changes), targets=("metal",), chip=chip).artifact
    chosen = artifact.plan.first.phase("decode").chosen
    assert chosen is not None and chosen.sizes["step_threads"]
    (entry,) = artifact.plan.first.step_kernels
    _, said = nvrtc.compile_and_tell("step", with_prelude(artifact.files[entry.file]), SM_90A)
    spills = {found[1]: int(bytes_) for name, bytes_ in SPILLS.findall(said) if (found := NAME.match(name))}
    assert {"qkv", "attend", "attend_partition", "attend_reduce", "o", "gate_up", "down", "logits"} <= set(spills)
    for label, spilled in spills.items():
        assert spilled <= (1024 if label.startswith("attend") else most), f"{label} spills {spilled} bytes"
