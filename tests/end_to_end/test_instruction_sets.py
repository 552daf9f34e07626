"""Host cpu held to each instruction set: llama.cpp's numbers, and no instruction of a newer set in the library."""

import functools
import re
import shutil
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest

import mlxr
from mlxr.compiler.artifact import Artifact
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.loading.imported_model import import_model
from mlxr.runtime.hosts.cpu.build import load_library
from mlxr_tests.instruction_sets import held_to
from mlxr_tests.storyteller import GOLDEN


@pytest.fixture(autouse=True)
def _compiled_as_for_users() -> None:
    """Not as for users, unlike elsewhere in this folder: short tests have code that is not optimised."""


SHORT = "Q4_K_M"  # with tensors in Q6_K
KINDS = [path.stem.removeprefix("tiny-") for path in sorted(GOLDEN.glob("tiny-*.gguf"))]
CASES = [
    pytest.param(kind, isa, marks=marks if kind == SHORT else [*marks, pytest.mark.long])
    for isa, marks in held_to()
    for kind in KINDS
]
# What only this set's code has, and what it may not have: instructions and registers, as objdump writes them.
BF16, TILES = r"vdpbf16ps|vcvtne2?ps2bf16", r"tdp\w+|tileload\w+|%tmm\d"
VNNI, AVX512, AVX = r"vpdp\w+", r"%zmm\d+|%k[1-7]", r"v\w+ .*%[xy]mm\d+"
SDOT, SMMLA = r"[su]dot|vdot\w*", r"[su]mmla|usdot|usmmla"
HAS = {
    "x86-64-v2": (r"pmaddubsw .*%xmm", (AVX, AVX512)),
    "x86-64-v3": (r"vpmaddubsw .*%ymm", (AVX512, VNNI)),
    "x86-64-v4": (r"vpmaddubsw .*%zmm", (VNNI, BF16, TILES)),
    "vnni": (r"vpdpbusd .*%zmm", (BF16, TILES)),
    "bf16": (r"vdpbf16ps .*%zmm", (TILES,)),
    "amx": (r"tdpbf16ps .*%tmm", ()),
    "avx-vnni": (r"(\{vex\} )?vpdpbusd .*%ymm", (AVX512, BF16)),  # objdump tells it from AVX-512's by the prefix
    "neon": (r"smull2?", (SDOT, SMMLA)),
    "dotprod": (r"sdot", (SMMLA,)),
    "i8mm": (r"smmla", ()),
}


@functools.cache
def artifact_of(kind: str) -> Artifact:
    spec, _ = import_model(GOLDEN / f"tiny-{kind}.gguf", ImportOptions())
    return compile_spec(spec, targets=("cpu",)).artifact


@pytest.mark.parametrize(("kind", "isa"), CASES)
def test_logits_are_llama_cpps(monkeypatch: pytest.MonkeyPatch, kind: str, isa: str) -> None:
    """A prompt's, and those of the steps after its first tokens, within what 8-bit activations cost (f32: nothing)."""
    monkeypatch.setenv("MLXR_CPU_ARCH", isa)
    recorded = np.load(GOLDEN / "tiny-llamacpp.npz")
    tokens, expected = recorded["tokens"].tolist(), recorded[f"logits_{kind}"]
    with mlxr.load(artifact_of(kind), GOLDEN / f"tiny-{kind}.gguf", host="cpu") as model:
        prompt = model.logits(tokens)
        steps = np.stack([model.logits(tokens[:count])[-1] for count in range(1, 4)])
    for got, wanted in ((prompt, expected), (steps, expected[:3])):
        error = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
        assert error < (1e-5 if kind == "f32" else 0.05)


def instructions(path: str) -> Iterator[str]:
    """The instructions of a library, one a line, without addresses and bytes."""
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True
    ).stdout
    return (line.split("\t", 1)[1] for line in listing.splitlines() if line.startswith(" ") and "\t" in line)


@pytest.mark.parametrize("isa", [pytest.param(isa, marks=marks) for isa, marks in held_to()])
def test_the_library_has_the_sets_instructions_and_no_newer_ones(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    if shutil.which("objdump") is None:
        pytest.skip("there is no objdump")
    monkeypatch.setenv("MLXR_CPU_ARCH", isa)
    own, newer = HAS[isa]
    artifact = artifact_of(SHORT)
    found = list(instructions(load_library(artifact.source("cpu"), artifact.spec.name)._name))
    assert any(re.match(own, line) for line in found)
    assert not [line for line in found if any(re.search(rf"(^|[ ,(]){other}\b", line) for other in newer)][:5]
