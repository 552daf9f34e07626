"""Sets of instructions by name: what compilers are told, and what this CPU lacks is refused, whoever names it."""

import platform

import pytest

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cpu import instruction_sets, processor
from mlxr.runtime.hosts.cpu.build import load_library
from mlxr.runtime.hosts.cpu.instruction_sets import InstructionSet, machine_flags

TEXT = '__attribute__((visibility("default"))) int answer(void) { return 42; }\n'
x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="names CPUs of one kind")
V3 = frozenset({"ssse3", "sse4_1", "sse4_2", "popcnt", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})


@pytest.fixture
def old_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU of 2013."""
    monkeypatch.setattr(instruction_sets, "features", lambda: V3)


@x86
def test_the_set_can_be_chosen(cache, runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXR_CPU_ARCH", "x86-64-v2")
    assert load_library(TEXT, "model").answer() == 42
    assert "-march=x86-64-v2" in runs[-1] and not any("native" in word for word in runs[-1])


@x86
def test_a_set_that_this_cpu_lacks_is_refused_before_anything_is_compiled(
    cache, runs, old_cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLXR_CPU_ARCH", "bf16")
    wanted = (
        r"MLXR_CPU_ARCH=bf16 needs avx512_bf16, avx512_vnni, .*, which this CPU does not have; it has x86-64-v2, "
        r"x86-64-v3$"
    )
    with pytest.raises(HostError, match=wanted):
        load_library(TEXT, "model")
    assert not runs


@x86
@pytest.mark.parametrize(("variable", "value"), [("MLXR_CPU_ARCH", "skylake-avx512"), ("MLXR_CPU_CFLAGS", "-mavx512f")])
def test_what_only_the_compiler_knows_is_refused_too(
    cache, old_cpu, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """Now, and when it is in the cache."""
    monkeypatch.setenv(variable, value)
    for _ in range(2):
        with pytest.raises(HostError, match=f"{variable}={value}: what was compiled needs .*avx512f.*this CPU"):
            load_library(TEXT, "model")


def test_names_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXR_CPU_ARCH", "x86-64; rm")
    with pytest.raises(HostError, match=r"MLXR_CPU_ARCH='x86-64; rm' is not the name of a CPU or of one of \w"):
        machine_flags()


@pytest.mark.parametrize(
    ("name", "others", "zigs"),
    [
        ("x86-64-v2", ["-march=x86-64-v2"], "-mcpu=x86_64_v2"),
        ("vnni", ["-march=x86-64-v4", "-mavx512vnni"], "-mcpu=x86_64_v4+avx512vnni"),
        (
            "amx",
            ["-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"],
            "-mcpu=x86_64_v4+avx512vnni+avx512bf16+amx_tile+amx_int8+amx_bf16",
        ),
        ("neon", ["-march=armv8-a"], "-mcpu=generic"),
        ("i8mm", ["-march=armv8.2-a+dotprod+i8mm"], "-mcpu=generic+dotprod+i8mm"),
    ],
)
def test_what_compilers_are_told(name: str, others: list[str], zigs: str) -> None:
    sets = (*instruction_sets._X86, *instruction_sets._ARM)
    found: InstructionSet = next(one for one in sets if one.name == name)
    assert list(found.flags(is_zig=False)) == others
    assert list(found.flags(is_zig=True)) == [zigs]


@pytest.mark.parametrize(
    ("machine", "flags", "missing"),
    [
        ("x86_64", "ssse3 sse4_1 sse4_2 popcnt avx", {"x86-64-v3", "x86-64-v4", "vnni", "bf16", "amx", "avx-vnni"}),
        ("x86_64", "", set()),  # a system that says nothing of the CPU refuses nothing
    ],
)
def test_the_sets_of_this_cpu_are_those_that_the_system_reports(
    monkeypatch: pytest.MonkeyPatch, machine: str, flags: str, missing: set[str]
) -> None:
    monkeypatch.setattr(processor.platform, "machine", lambda: machine)
    monkeypatch.setattr(processor, "_cpuinfo", lambda: {"flags": flags} if flags else {})
    processor.features.cache_clear()
    try:
        found = {one.name for one in instruction_sets.instruction_sets() if one.missing}
    finally:
        processor.features.cache_clear()
    assert found == missing
