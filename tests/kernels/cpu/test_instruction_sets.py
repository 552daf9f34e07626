"""The C program held to less than this CPU has, and built by the other compiler: same numbers, other code."""

import pytest

from mlxr_tests.c_harness import CC, ZIG, compilers, marches
from mlxr_tests.cpu_specs import SPECS
from mlxr_tests.few import few
from mlxr_tests.host_pair import HostPair
from mlxr_tests.schedules import SCHEDULES
from mlxr_tests.specs import compiled, small_spec

LEAST = [march for march in marches() if march != "native"]
CHOSEN = (
    *("f16-layer", "mixed-floats", "contiguous-q8", "q4_k_m", "affine"),
    *("fast-q8_0", "fast-q4_0", "fast-q4_k_m", "fast-bf16", "fast-small-blocks", "fast-large-blocks", "fast-affine"),
)


def run(name: str) -> None:
    pair = HostPair(compiled(small_spec(**SPECS[name]), target="cpu"), threads=2)
    for schedule in ("one-sequence", "mixed-batches"):
        if schedule == "one-sequence" or pair.plan.arena.max_sequences > 1:
            SCHEDULES[schedule](pair)


WITH_LEAST = [(name, march) for march in LEAST for name in CHOSEN]


@pytest.mark.parametrize(("name", "march"), few(WITH_LEAST, WITH_LEAST[15:16]))
def test_lesser_instruction_sets(monkeypatch: pytest.MonkeyPatch, name: str, march: str) -> None:
    monkeypatch.setenv("MLXR_CPU_ARCH", march)
    run(name)


@pytest.mark.skipif(not {CC, ZIG} <= set(compilers()), reason="there is one compiler")
@pytest.mark.parametrize("name", few(CHOSEN, ["fast-q4_k_m"]))
def test_ziglang_where_there_is_another_compiler(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("CC", " ".join(ZIG))
    run(name)
