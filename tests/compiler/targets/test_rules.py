"""Every kind of op that the passes leave to a target has a lowering rule there, and no other kind has."""

import pytest

from mlxr.compiler.driver import compile_spec
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.op_registry import op_kinds
from mlxr.compiler.ir.ops.handover import GiveRouted, GiveSum, TakeRouted, TakeSum
from mlxr.compiler.schedule.lowering import Lowering
from mlxr_tests.specs import small_spec

OTHER_END: dict[str, set[type[OpKind]]] = {"metal": {TakeRouted, GiveSum}, "cpu": {GiveRouted, TakeSum}}
"""What the other of two hosts does, where one has some layers' experts."""


@pytest.mark.parametrize("target", ["metal", "cpu"])
def test_the_kinds_of_ordered_graphs_have_rules(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    lowered: list[set[type[OpKind]]] = []
    lower_ops = Lowering.lower_ops

    def noted(lowering: Lowering) -> None:
        lowered.append(set(lowering.rules))
        lower_ops(lowering)

    monkeypatch.setattr(Lowering, "lower_ops", noted)
    compile_spec(small_spec(model__num_layers=1), targets=(target,))
    kinds = {kind for kind in op_kinds().values() if "ordered" in kind.stages} - OTHER_END[target]
    assert lowered == [kinds, kinds]
