"""Finds pointers and references without an address space, which a Metal compiler refuses.

C++ for OpenCL takes such a pointer for a generic one, so clang accepts it here. Only declarations of types that can be
recognised in the text are checked: built-in types, template parameters, and structs of the text.
"""

import re

from mlxr.compiler.errors import HostError

_SCALAR = r"(?:bool|char|uchar|short|ushort|int|uint|long|ulong|half|float|bfloat|void|size_t)"
_BUILT_IN = rf"{_SCALAR}[234]?|u?int(?:8|16|32|64)_t|b?float16_t|unsigned(?: int)?|vec<[^<>]*>"
_SPACES = ("device", "threadgroup", "thread", "constant")
_WORD = r"(?:const|volatile|restrict|device|threadgroup|thread|constant)"


def require_address_spaces(plain: str, kernel: str) -> None:
    """Checks a text whose comments have been replaced by spaces.

    Raises:
        HostError: a pointer or reference names no address space.
    """
    own = re.findall(r"\b(?:typename|struct)\s+(\w+)", plain)
    types = "|".join([_BUILT_IN, *sorted({re.escape(name) for name in own})])
    pattern = re.compile(rf"(?<![\w.])((?:{_WORD}\s+)*)\b({types})\b((?:\s+{_WORD})*)\s*(\*|&(?!&))")
    for match in pattern.finditer(plain):
        words = f"{match[1]} {match[3]}".split()
        if not any(space in words for space in _SPACES):
            line = plain.count("\n", 0, match.start()) + 1
            declaration = " ".join(match.group().split())
            raise HostError(
                f"sim: kernel {kernel!r}, line {line}: `{declaration}`: pointer or reference without an address space; "
                "Metal wants device, threadgroup, thread or constant"
            )
