"""Every kind of op that the passes leave to the targets has a lowering rule in each of them, and no other kind has."""

import pytest

from mlxr.compiler.driver import compile_spec
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.op_registry import op_kinds
from mlxr.compiler.schedule.lowering import Lowering
from mlxr_tests.specs import small_spec


@pytest.mark.parametrize("target", ["metal", "cpu"])
def test_the_kinds_of_ordered_graphs_have_rules(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    lowered: list[set[type[OpKind]]] = []
    lower_ops = Lowering.lower_ops

    def noted(lowering: Lowering) -> None:
        lowered.append(set(lowering.rules))
        lower_ops(lowering)

    monkeypatch.setattr(Lowering, "lower_ops", noted)
    compile_spec(small_spec(model__num_layers=1), targets=(target,))
    kinds = {kind for kind in op_kinds().values() if "ordered" in kind.stages}
    assert lowered == [kinds, kinds]
