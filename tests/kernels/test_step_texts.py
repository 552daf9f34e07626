"""The step kernel's text compiles, with NVIDIA's own compiler, for every kind of kernel that a step may have."""

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.plan.geometry import Geometry
from mlxr.runtime.hosts.cuda import nvrtc
from mlxr.runtime.hosts.cuda.step_program import step_program
from mlxr.runtime.hosts.cuda.step_text import step_text
from mlxr_tests.family_specs import ALL_SPECS, family_spec
from mlxr_tests.has_nvrtc import has_nvrtc
from mlxr_tests.specs import compiled
from mlxr_tests.storyteller import storyteller_spec
from mlxr_tests.variants import VARIANTS, variant

pytestmark = pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC; pip install nvidia-cuda-nvrtc")

FLAGS = ("--std=c++17", "--device-as-default-execution-space", "--gpu-architecture=compute_80", "-dlto")
SM_90A = (*FLAGS[:2], "--gpu-architecture=sm_90a", "--ptxas-options=-v")


def text_of(artifact: Artifact, threads: int = 512, blocks: int = 2) -> str:
    return step_text(artifact, step_program(artifact.plan), threads, blocks).text


@pytest.mark.parametrize("name", ALL_SPECS)
def test_steps_of_families_compile(name: str) -> None:
    nvrtc.compile_cubin(name, text_of(compiled(family_spec(name), Geometry(partition=16))), FLAGS)


@pytest.mark.parametrize("name", VARIANTS)
def test_steps_of_variants_compile(name: str) -> None:
    nvrtc.compile_cubin(name, text_of(variant(name)), FLAGS)


def test_the_storytellers_step_becomes_a_cubin() -> None:
    artifact = compile_spec(storyteller_spec(), targets=("metal",)).artifact
    assert nvrtc.compile_cubin("storyteller", text_of(artifact, 256, 4), SM_90A)
