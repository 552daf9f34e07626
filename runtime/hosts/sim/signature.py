"""Reads a kernel's signature from its Metal text, and checks the address spaces of its pointers.

The entry function that calls a kernel is written from its signature: its buffers, their address spaces, and the
attributes that it has as parameters. Only the signature is parsed here; clang checks the rest, but for address
spaces: C++ for OpenCL takes a pointer without one for a generic one. Only declarations of types that can be recognised
in the text are checked: built-in types, template parameters, and structs of the text.
"""

import re
from dataclasses import dataclass, replace

from mlxr.compiler.errors import HostError

_UINT3 = {
    "threadgroup_position_in_grid": "g->group[{i}]",
    "threadgroups_per_grid": "g->groups[{i}]",
    "thread_position_in_threadgroup": "sim::position(g, i, {i})",
    "threads_per_threadgroup": "g->threads[{i}]",
    "dispatch_threads_per_threadgroup": "g->threads[{i}]",
    "thread_position_in_grid": "g->group[{i}] * g->threads[{i}] + sim::position(g, i, {i})",
    "threads_per_grid": "g->groups[{i}] * g->threads[{i}]",
}
_UINT = {
    "thread_index_in_threadgroup": "i",
    "thread_index_in_simdgroup": "i % 32u",
    "simdgroup_index_in_threadgroup": "i / 32u",
    "simdgroups_per_threadgroup": "(g->count + 31u) / 32u",
    "dispatch_simdgroups_per_threadgroup": "(g->count + 31u) / 32u",
    "threads_per_simdgroup": "32u",
    "thread_execution_width": "32u",
    "thread_index_in_quadgroup": "i % 4u",
    "quadgroup_index_in_threadgroup": "i / 4u",
}
_ATTRIBUTE_TYPE = re.compile(r"(?:const\s+)?(uint|ushort|uint32_t|uint16_t)([23]?)$")
_SCALAR = r"(?:bool|char|uchar|short|ushort|int|uint|long|ulong|half|float|bfloat|void|size_t)"
_BUILT_IN = rf"{_SCALAR}[234]?|u?int(?:8|16|32|64)_t|b?float16_t|unsigned(?: int)?|vec<[^<>]*>"
_SPACES = ("device", "threadgroup", "thread", "constant")
_WORD = r"(?:const|volatile|restrict|device|threadgroup|thread|constant)"


@dataclass(frozen=True)
class Param:
    """One buffer of a kernel.

    Attributes:
        name: the parameter's name in the text.
        index: its `[[buffer(index)]]`.
        space: "device" or "constant".
        type: the type that it points to, for example "float" or "uint4".
        writable: whether the pointer is to non-const memory (an output).
        reference: whether it is `T&` rather than `T*`.
        in_place: whether the text casts its const away in order to write to it.
    """

    name: str
    index: int
    space: str
    type: str
    writable: bool
    reference: bool
    in_place: bool = False


@dataclass(frozen=True)
class Signature:
    """A kernel's name, its buffers in order of index, and the arguments to call it with.

    Attributes:
        name: the kernel function's name.
        params: the buffers; their indices are 0, 1, 2, ... without gaps.
        arguments: one expression per parameter, in the order of the text, over `b` (addresses by buffer index) and
            `g` (a `MlxrSimGroup`) and `i` (the thread's index in the threadgroup).
    """

    name: str
    params: tuple[Param, ...]
    arguments: tuple[str, ...]


def parse_signature(text: str, name: str | None = None) -> Signature:
    """Parses the signature of the kernel in `text`.

    Args:
        text: Metal text with one kernel, or with several if `name` is given.
        name: which kernel; None: the only one.

    Raises:
        HostError: there is no such kernel, there are several and no name is given, or sim does not know a parameter.
    """
    plain = without_comments(text)
    heads = list(re.finditer(r"(?:\[\[\s*kernel\s*\]\]|\bkernel\b)(?:\s*\[\[[^\]]*\]\])*\s+void\s+(\w+)\s*\(", plain))
    names = [head.group(1) for head in heads]
    if name is None and len(heads) != 1:
        raise HostError(f"sim: expected one kernel in the text, found {names or 'none'}; name the one to run")
    chosen = [head for head in heads if name is None or head.group(1) == name]
    if not chosen:
        raise HostError(f"sim: no kernel named {name!r} in the text; it has {names or 'none'}")
    head = chosen[0]
    kernel = head.group(1)
    params: list[Param] = []
    arguments: list[str] = []
    for item in _split(plain, head.end()):
        if match := re.search(r"\[\[\s*buffer\s*\(\s*(\d+)\s*\)\s*\]\]\s*$", item):
            param = _buffer(kernel, item[: match.start()].strip(), int(match.group(1)))
            params.append(param)
            qualifier = "" if param.writable else "const "
            pointer = f"({qualifier}{param.space} {param.type}*)b[{param.index}]"
            arguments.append(f"*{pointer}" if param.reference else pointer)
        else:
            arguments.append(_attribute(kernel, item))
    cast = set(re.findall(r"\bconst_cast\s*<[^;()]*>\s*\(\s*(\w+)", plain))
    params = [replace(param, in_place=not param.writable and param.name in cast) for param in params]
    params.sort(key=lambda param: param.index)
    indices = [param.index for param in params]
    if indices != list(range(len(params))):
        raise HostError(f"sim: kernel {kernel!r}: buffer indices must be 0, 1, 2, ... without gaps, got {indices}")
    return Signature(kernel, tuple(params), tuple(arguments))


def without_comments(text: str) -> str:
    """The text with its comments replaced by spaces, so that all other characters keep their places."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group())

    return re.sub(r"//[^\n]*|/\*.*?\*/", blank, text, flags=re.DOTALL)


def _split(text: str, start: int) -> list[str]:
    """The parameters from `start` (after the opening parenthesis) to the closing one."""
    items: list[str] = []
    depth, item_start = 0, start
    for position in range(start, len(text)):
        character = text[position]
        if character in "([{<":
            depth += 1
        elif character in ")]}>" and depth > 0:
            depth -= 1
        elif character == ")" or (character == "," and depth == 0):
            items.append(" ".join(text[item_start:position].split()))
            item_start = position + 1
            if character == ")":
                return [item for item in items if item]
    raise HostError("sim: a kernel's parameter list has no closing parenthesis")


def _buffer(kernel: str, declaration: str, index: int) -> Param:
    match = re.fullmatch(r"(.*?)\s*([*&])\s*(?:const\s+|restrict\s+|__restrict\s+)*(\w+)", declaration)
    words = match.group(1).split() if match else []
    spaces = [word for word in words if word in ("device", "constant")]
    if match is None or len(spaces) != 1:
        raise HostError(
            f"sim: kernel {kernel!r}: buffer {index}: expected `const device T* name`, `device T* name` or "
            f"`const constant T& name`, got `{declaration}`"
        )
    kind = " ".join(word for word in words if word not in ("device", "constant", "const", "volatile"))
    writable = spaces == ["device"] and "const" not in words
    return Param(match.group(3), index, spaces[0], kind, writable, match.group(2) == "&")


def _attribute(kernel: str, item: str) -> str:
    match = re.fullmatch(r"(.+?)\s+(\w+)\s*\[\[\s*(\w+)\s*\]\]", item)
    declared = _ATTRIBUTE_TYPE.match(match.group(1)) if match else None
    if match is None or declared is None:
        raise HostError(
            f"sim: kernel {kernel!r}: expected a buffer or `uint3 name [[attribute]]`, got the parameter `{item}`"
        )
    attribute, base, lanes = match.group(3), declared.group(1), int(declared.group(2) or 1)
    if attribute in _UINT and lanes == 1:
        return f"({base})({_UINT[attribute]})"
    if attribute in _UINT3:
        parts = [f"({base})({_UINT3[attribute].format(i=i)})" for i in range(lanes)]
        return (
            parts[0]
            if lanes == 1
            else f"sim::make<{base.removesuffix('32_t').removesuffix('16_t')}{lanes}>({', '.join(parts)})"
        )
    known = ", ".join(sorted([*_UINT, *_UINT3]))
    raise HostError(f"sim: kernel {kernel!r}: unknown attribute [[{attribute}]] of `{item}`; known are {known}")


def require_address_spaces(plain: str, kernel: str) -> None:
    """Refuses pointers and references without an address space, as a Metal compiler does.

    Args:
        plain: a text whose comments have been replaced by spaces.
        kernel: its name, for messages.

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
