"""The one Jinja2 environment, and the filters through which numbers reach a kernel."""

import functools
import math

import jinja2

from mlxr.compiler.dtypes import DType


def float_literal(value: float) -> str:
    """A float as an exact enough C literal: 0.1 -> `0.1f`, 1 -> `1.0f`. Refuses what has no literal."""
    if not math.isfinite(value):
        raise ValueError(f"{value} has no literal; kernels use a finite number instead")
    text = f"{value:.9g}"
    return f"{text}{'' if any(c in text for c in '.e') else '.0'}f"


def metal_type(dtype: str) -> str:
    """A type's name in kernel text: bf16 -> `bfloat16_t`."""
    return DType(dtype).metal


@functools.cache
def environment() -> jinja2.Environment:
    """Templates of `mlxr.templates`; an undefined name is an error."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("mlxr.templates", ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    env.filters["float_literal"] = float_literal
    env.filters["metal_type"] = metal_type
    return env
