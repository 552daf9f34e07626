"""Epilogues of C kernels, from a short description."""

import dataclasses
from typing import Any

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.targets.epilogue import Epilogue

_FIELDS = {field.name for field in dataclasses.fields(Epilogue)}


def epilogue_from(fields: dict[str, Any]) -> tuple[Epilogue, dict[str, Any]]:
    """The epilogue that is described by some of a kernel's fields, and the other fields. Ports are flags."""
    own = {name: value for name, value in fields.items() if name in _FIELDS}
    bound = dict.fromkeys((name for name in ("bias", "gate", "alpha_p", "alpha_n") if own.pop(name, False)), DType.F32)
    return Epilogue(out=DType.F32, **own, **bound), {n: value for n, value in fields.items() if n not in _FIELDS}
