"""Whole steps of every property that model families differ in: the C program on `cpu` against the unfused graph."""

import re

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import PlanError
from mlxr_tests.c_harness import marches
from mlxr_tests.cpu_specs import PAGED
from mlxr_tests.family_specs import ALL_SPECS, family_spec
from mlxr_tests.few import few
from mlxr_tests.host_pair import HostPair
from mlxr_tests.schedules import SCHEDULES
from mlxr_tests.specs import compiled
from mlxr_tests.tolerances import Mismatch

EXACT = {"compute": "exact", "cache": PAGED}
FAST = {"weights": {"default": "bf16", "norm": "f32"}, "cache": PAGED | {"dtype": "bf16", "block_size": 16}}
CONTIGUOUS = {"compute": "exact", "cache": {"dtype": "q8", "mode": "contiguous", "block_size": 16}}
# What meets matrix tiles, contiguous caches or lesser instruction sets.
CHOSEN = (
    "soft-caps",
    "sinks",
    "temperature",
    "chunks-of-some-layers",
    "element-gate",
    "head-gate-softplus",
    "experts-weighed-inputs",
    "gemma-like",
    "heads-by-layer",
    "shared-keys",
    "experts-topk-softmax-bias",
    "experts-shared-gate",
    "latent",
)


def artifact(name: str, changes: dict[str, object]) -> Artifact:
    return compiled(family_spec(name, **changes), target="cpu")


def run(name: str, changes: dict[str, object], threads: int = 2) -> None:
    pair = HostPair(artifact(name, changes), threads=threads)
    for schedule in SCHEDULES:
        if schedule == "one-sequence" or pair.plan.arena.max_sequences > 1:
            SCHEDULES[schedule](pair)


@pytest.mark.parametrize("name", few(ALL_SPECS, ["deepseek-like"]))
def test_exact(name: str) -> None:
    run(name, EXACT)


@pytest.mark.parametrize("name", few(CHOSEN, ["experts-topk-softmax-bias", "latent"]))
def test_fast(name: str) -> None:
    """Every expert is chosen: where two are nearly as good, rounding chooses, and results are far apart."""
    mlp = ALL_SPECS[name].get("model__mlp", {})
    if "experts" in mlp:
        mlp = mlp | {"experts": mlp["experts"] | {"per_token": mlp["experts"]["count"]}}
    run(name, FAST | {"model__mlp": mlp or {"intermediate_size": 88}})


@pytest.mark.parametrize("name", few(CHOSEN, ["sinks"]))
def test_contiguous_q8_caches(name: str) -> None:
    run(name, CONTIGUOUS)


WITH_LEAST = [(name, march) for march in marches() if march != "native" for name in CHOSEN]


@pytest.mark.long  # the short ones are end_to_end/test_instruction_sets.py
@pytest.mark.parametrize(("name", "march"), WITH_LEAST)
def test_lesser_instruction_sets(monkeypatch: pytest.MonkeyPatch, name: str, march: str) -> None:
    monkeypatch.setenv("MLXR_CPU_ARCH", march)
    run(name, EXACT)


@pytest.mark.long
def test_empty_functions_are_noticed() -> None:
    """Each function of the C program in turn returns at once. (No experts: without a choice any would be read.)"""
    whole = artifact("olmo-like", EXACT)
    (file,) = whole.plan.programs["cpu"].files
    source = whole.source("cpu")
    functions = re.findall(r"^static void (\w+_[0-9a-f]{8})\(mlxr_worker \*w, [^{;]*\{$", source, re.MULTILINE)
    assert len(functions) >= 8, functions
    for function in functions:
        head = re.search(rf"^static void {function}\([^{{;]*\{{$", source, re.MULTILINE)
        assert head is not None
        text = f"{source[: head.end()]}\n    if (w) return;\n{source[head.end() :]}"
        pair = HostPair(Artifact({**whole.files, file: text}), threads=1)
        with pytest.raises(Mismatch):
            SCHEDULES["mixed-batches"](pair)


def test_experts_of_broken_panels_are_refused() -> None:
    """Only where the format of the rows is packed and that of the next matrix allows any number of them."""
    experts = {"count": 5, "per_token": 2, "router": "softmax_topk"}
    changes = {
        "model__hidden_size": 64,
        "model__mlp": {"intermediate_size": 40, "experts": experts},
        "weights": {"default": "f32", "tensors": {"*.experts.up": "q8_0"}},
    }
    with pytest.raises(PlanError, match=r"layers.0.mlp.experts.up has 40 rows an expert in q8_0; .* multiple"):
        artifact("experts-normalised", changes)
