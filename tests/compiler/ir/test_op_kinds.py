"""How op kinds are declared."""

import sys
from pathlib import Path

import pytest

from mlxr.compiler.ir import ops
from mlxr.compiler.ir.op_kind import EVERY_STAGE, OpKind
from mlxr.compiler.ir.op_registry import op_kinds, read_op_kind
from mlxr.compiler.ir.ops.elementwise import Elementwise
from mlxr_tests.expert_ops import tokens

OPS = op_kinds()


def test_a_kind_without_a_fact_cannot_be_declared() -> None:
    with pytest.raises(TypeError, match="op kind mute lacks summary, infer, work, divide"):
        type("Mute", (OpKind,), {"name": "mute", "family": "norm", "inputs": ("x",)})
    type("OfSource", (Elementwise,), {"name": "of_source", "summary": "no launch computes it"})
    with pytest.raises(TypeError, match="op kind of_programs lacks work"):
        type("OfPrograms", (Elementwise,), {"name": "of_programs", "summary": "x", "stages": EVERY_STAGE})


def test_a_new_kind_is_a_new_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = "from mlxr.compiler.ir.ops.elementwise import Scale\n\nclass Negate(Scale):\n    name = 'negate'\n"
    (tmp_path / "negate.py").write_text(source)
    monkeypatch.setattr(ops, "__path__", [*ops.__path__, str(tmp_path)])
    op_kinds.cache_clear()
    try:
        assert op_kinds().keys() == OPS.keys() | {"negate"}
        assert read_op_kind("negate", {"factor": 2.0}).infer({"x": tokens(48)}) == {"out": tokens(48)}
    finally:
        op_kinds.cache_clear()
        sys.modules.pop("mlxr.compiler.ir.ops.negate", None)
