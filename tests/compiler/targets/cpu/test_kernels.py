"""A kernel of target cpu is one module, with a template of the same name and the rule of its op kinds."""

import importlib
import pkgutil
from importlib.resources import files

import pytest

from mlxr.compiler.ir.op_registry import op_kinds
from mlxr.compiler.ir.ops.handover import GiveRouted, TakeSum
from mlxr.compiler.targets.cpu import kernels
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel
from mlxr.compiler.targets.cpu.lowering import RULES
from mlxr_tests.cpu_specs import SPECS
from mlxr_tests.family_specs import family_spec
from mlxr_tests.specs import compiled, small_spec

SHARED = {"model.c.jinja", "cache.jinja", "delta.jinja", "finish.jinja", "matrix.jinja"}
"""Templates that are no kernels."""
WITHOUT_RULE = {"copy_blocks", "rope_table"}
"""Kernels of which no op is the result: they run before the ops that need them."""


def modules() -> dict[str, object]:
    return {
        info.name: importlib.import_module(f"{kernels.__name__}.{info.name}")
        for info in pkgutil.iter_modules(kernels.__path__)
    }


def test_a_kernel_has_a_module_and_a_template_of_one_name() -> None:
    templates = {path.name for path in (files("mlxr.templates") / "cpu").iterdir() if path.name.endswith(".jinja")}
    assert {f"{name}.jinja" for name in modules()} == templates - SHARED
    for name, module in modules().items():
        own = [
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, CpuKernel) and value.__module__ == module.__name__
        ]
        assert [kernel.template for kernel in own] == [f"{name}.jinja"]


def test_rules_stand_beside_their_kernels() -> None:
    assert {rule.__module__.rpartition(".")[2] for rule in RULES.of_kinds().values()} == set(modules()) - WITHOUT_RULE


def test_every_kind_that_the_passes_leave_has_a_rule() -> None:
    of_the_card = {GiveRouted, TakeSum}
    assert set(RULES.of_kinds()) == {kind for kind in op_kinds().values() if "ordered" in kind.stages} - of_the_card


@pytest.mark.parametrize(("compute", "times"), [("fast", 1), ("exact", 0)])
def test_a_program_has_the_headers_that_its_kernels_name_once(compute: str, times: int) -> None:
    spec = small_spec(**SPECS["fast-f16"], compute=compute)
    text = compiled(spec, target="cpu").source("cpu")
    header = (files("mlxr.templates") / "cpu" / "prefill_tiles.h").read_text("utf-8")
    assert text.count(header.rstrip()) == times


@pytest.mark.parametrize("name", ["plain", "latent", "gemma-like", "delta", "ssm-beside-attention"])
@pytest.mark.parametrize("change", [{"model__context": 80}, {"cache__num_blocks": 37}], ids=["context", "blocks"])
def test_a_program_serves_all_contexts(name: str, change: dict[str, int]) -> None:
    """Its library is compiled once: only the first line, which names the spec, is another."""
    own, other = (compiled(family_spec(name, **more), target="cpu").source("cpu") for more in ({}, change))
    assert own.partition("\n")[2] == other.partition("\n")[2]
