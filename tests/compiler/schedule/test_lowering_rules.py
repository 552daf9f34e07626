"""Rules register themselves: the modules of a package are imported, and no list names them."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.ir.ops.product import Product
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.lowering import Lowering, Rule
from mlxr.compiler.schedule.lowering_rules import LoweringRules
from mlxr.compiler.schedule.memory import arena_geometry
from mlxr_tests.graphs import small_graph
from mlxr_tests.specs import small_spec

PACKAGE = "toy_kernels"
MODULE = """
from toy_rules import RULES
from mlxr.compiler.ir.ops.norm import Norm

@RULES.lowers(Norm)
def lower_norm(lowering, op, attrs):
    lowering.lowered.append((op.name, attrs.kind))
"""


class ToyLowering(Lowering):
    """Collects what its rules say."""

    def __init__(self) -> None:
        super().__init__(small_graph(), "decode", arena_geometry(small_spec(), GeometryTable()))
        self.lowered: list[tuple[str, str]] = []

    @property
    def rules(self) -> Mapping[type[OpKind], Rule]:
        return {}


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoweringRules[ToyLowering]]:
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "norm.py").write_text(MODULE)
    (tmp_path / "toy_rules.py").write_text(
        f"from mlxr.compiler.schedule.lowering_rules import LoweringRules\nRULES = LoweringRules({PACKAGE!r})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("toy_rules").RULES
    for name in [name for name in sys.modules if name.startswith("toy_")]:
        del sys.modules[name]


def test_modules_of_the_package_are_imported(rules: LoweringRules[ToyLowering]) -> None:
    lowering = ToyLowering()
    op = next(op for op in lowering.graph.ops if isinstance(op.attrs, Norm))
    rules.bound_to(lowering)[Norm](op)
    assert lowering.lowered == [(op.name, op.attrs_as(Norm).kind)]


def test_one_rule_for_several_kinds() -> None:
    rules: LoweringRules[ToyLowering] = LoweringRules(__package__ or "toy")

    @rules.lowers(Linear, Projection)
    def lower(lowering: ToyLowering, op: Op, attrs: Product) -> None: ...

    with pytest.raises(AssertionError, match="two rules lower Linear"):
        rules.lowers(Linear)(lower)
