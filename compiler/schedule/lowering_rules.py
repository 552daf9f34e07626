"""The lowering rules of a target. Each is next to its kernel; no list names them."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.schedule.lowering import Lowering, Rule

LoweringT = TypeVar("LoweringT", bound=Lowering)
Kind = TypeVar("Kind", bound=OpKind)
KindRule = Callable[[LoweringT, Op, Kind], None]
"""Lowers an op of one kind. Arguments: the lowering that collects launches, the op, and the op's attributes."""


class LoweringRules(Generic[LoweringT]):
    """The rules of one target, by op kind.

    The modules of one package register their rules with `lowers`. The first use imports all of them, so a new kernel is
    just a new module.

    Args:
        package: the full name of that package.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._rules: dict[type[OpKind], KindRule[LoweringT, Any]] = {}
        self._imported = False

    def lowers(self, *kinds: type[Kind]) -> Callable[[KindRule[LoweringT, Kind]], KindRule[LoweringT, Kind]]:
        """Registers the rule of some op kinds. Each kind may have only one rule."""

        def register(rule: KindRule[LoweringT, Kind]) -> KindRule[LoweringT, Kind]:
            for kind in kinds:
                assert kind not in self._rules, f"two rules lower {kind.__name__}"
                self._rules[kind] = rule
            return rule

        return register

    def bound_to(self, lowering: LoweringT) -> Mapping[type[OpKind], Rule]:
        """All rules, bound to a lowering; for `Lowering.rules`."""
        return {kind: partial(_apply, rule, lowering) for kind, rule in self.of_kinds().items()}

    def of_kinds(self) -> Mapping[type[OpKind], KindRule[LoweringT, Any]]:
        """The rule of each op kind."""
        if not self._imported:
            for info in pkgutil.iter_modules(importlib.import_module(self._package).__path__, f"{self._package}."):
                importlib.import_module(info.name)
            self._imported = True
        return self._rules


def _apply(rule: KindRule[LoweringT, Any], lowering: LoweringT, op: Op) -> None:
    rule(lowering, op, op.attrs)
