"""Constrained output: which tokens may come next, so that an answer follows a JSON schema or another grammar.

A `ConstraintCompiler`, one for each model, makes a `Constraint` for each request that asks for one, with the library
llguidance.
"""

from mlxr.runtime.engine.constraint.constraint import Constraint
from mlxr.runtime.engine.constraint.constraint_compiler import ConstraintCompiler
from mlxr.runtime.engine.constraint.grammar import unenforced

__all__ = ["Constraint", "ConstraintCompiler", "unenforced"]
