"""The headers of templates/cpu/formats that the weight formats of a program need.

A header that needs another header has a line for it: `// Needs: k_scales.h`.
"""

import hashlib
import re
from collections.abc import Collection, Iterator
from functools import cache
from importlib.resources import files

from mlxr.compiler.formats.weight_format import WeightFormat

_BASE = ("integer_dot", "interleave", "panels")
_NEEDS = re.compile(r"^// Needs: (\w+)\.h$", re.MULTILINE)


def format_headers(formats: Collection[WeightFormat]) -> tuple[str, ...]:
    """Paths under templates/cpu, each after the headers that it needs. Float formats need no header."""
    quantised = [format for format in WeightFormat if format in formats and format.is_quantised]
    names = dict.fromkeys(name for format in quantised for name in _with_needs(format.template))
    return tuple(f"formats/{name}.h" for name in ((*_BASE, *names) if names else ()))


def affine_definitions(formats: Collection[WeightFormat]) -> str:
    """C text that follows the headers and defines each format that uses affine.h."""
    affine = [(format, format.affine) for format in WeightFormat if format in formats]
    lines = [f"MLXR_AFFINE_FORMAT({format}, {a.bits}, {a.group}, {a.scale})\n" for format, a in affine if a]
    return "".join(lines)


def packing(formats: Collection[WeightFormat]) -> str:
    """A hash of all that decides what panels of these formats look like; empty: there are no panels.

    Panels look alike on all CPUs, and for all programs.
    """
    names = format_headers(formats)
    texts = [(files("mlxr.templates") / "cpu" / name).read_text("utf-8") for name in ("common.h", *names)]
    digest = hashlib.sha256("\0".join((*texts, affine_definitions(formats))).encode())
    return digest.hexdigest()[:16] if names else ""


@cache
def _with_needs(name: str) -> tuple[str, ...]:
    """A header, after all headers that it needs."""

    def walk(name: str) -> Iterator[str]:
        text = (files("mlxr.templates") / "cpu" / "formats" / f"{name}.h").read_text("utf-8")
        for needed in _NEEDS.findall(text):
            yield from walk(needed)
        yield name

    return tuple(dict.fromkeys(walk(name)))
