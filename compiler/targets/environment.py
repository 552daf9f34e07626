"""The compiler's Jinja2 environment, and the filters through which numbers reach a kernel."""

import functools
import math
import struct

import jinja2

from mlxr.compiler.formats.dtypes import DType
from mlxr.templates.environment import environment as plain_environment


def float_literal(value: float) -> str:
    """The fp32 number nearest to a float, as a C literal: 0.1 -> `0.1f`, 1 -> `1.0f`. Refuses inf and nan."""
    if not math.isfinite(value):
        raise ValueError(f"{value} has no literal; kernels use a finite number instead")
    # To fp32 first: 9 digits of the double may lie on the other side of a midpoint between two fp32 numbers.
    text = f"{struct.unpack('f', struct.pack('f', value))[0]:.9g}"
    return f"{text}{'' if any(c in text for c in '.e') else '.0'}f"


def metal_type(dtype: str) -> str:
    """A type's name in kernel text: bf16 -> `bfloat16_t`."""
    return DType(dtype).metal


@functools.cache
def environment() -> jinja2.Environment:
    """Templates of `mlxr.templates` with these filters."""
    env = plain_environment()
    env.filters["float_literal"] = float_literal
    env.filters["metal_type"] = metal_type
    return env
