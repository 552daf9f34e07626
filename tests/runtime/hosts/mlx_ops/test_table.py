"""The functions of the op kinds register themselves: a new one is a new file."""

import sys
from pathlib import Path

import mlx.core as mx
import pytest

from mlxr.compiler.ir.op_registry import op_kinds
from mlxr.runtime.hosts import mlx_ops
from mlxr.runtime.hosts.mlx_ops import evaluate
from mlxr.runtime.hosts.mlx_ops.table import op_functions

NEGATE = """
from dataclasses import dataclass

from mlxr.compiler.ir.ops.elementwise import Elementwise
from mlxr.runtime.hosts.mlx_ops.table import evaluates


class Negate(Elementwise):
    name = "negate"
    summary = "-x"


@evaluates(Negate)
def negate(inputs, attrs, arena=None):
    return {"out": -inputs["x"]}
"""


def test_every_kind_has_a_function() -> None:
    """Collectives aside: the reference interprets the graph of the whole model."""
    assert op_functions().keys() == {kind for kind in op_kinds().values() if kind.family != "collective"}


def test_a_new_function_is_a_new_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "negate.py").write_text(NEGATE)
    monkeypatch.setattr(mlx_ops, "__path__", [*mlx_ops.__path__, str(tmp_path)])
    known = dict(op_functions())
    op_functions.cache_clear()
    try:
        (kind,) = op_functions().keys() - known.keys()
        assert evaluate(kind(), {"x": mx.array([1.0, -2.0])})["out"].tolist() == [-1.0, 2.0]
    finally:
        op_functions().pop(kind)
        sys.modules.pop("mlxr.runtime.hosts.mlx_ops.negate")
