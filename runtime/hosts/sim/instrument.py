"""Turns clang's thread-sanitizer calls into sim's own checks, in the text of the LLVM IR.

clang puts `call void @__tsan_read4(ptr %p), !dbg !9` before every access that matters. Each such call becomes
`call void @mlxr_check_read4(ptr %p, i32 SLOT, i32 SITE), !dbg !9`. SLOT is the number of the place in the kernel (each
place has its own cache entry). SITE is its line and column in the Metal text, so that a fault can name it. The checks
are functions of metal_on_cpu_simd.h, which the next compilation inlines.

Private memory has no such calls. Where the compiler knows the array that a pointer points into, also after inlining,
-fsanitize=local-bounds branches to a trap, which becomes a call of mlxr_fail_private. A private pointer to an unknown
array (in a function that was not inlined) is not checked.
"""

import re

from mlxr.compiler.errors import HostError

NUM_SITES = "mlxr_sim_num_sites"
MAX_SITES = 8192

_ACCESS = re.compile(
    r"^(?P<indent>\s+)(?:tail |musttail )?call void @__tsan_(?P<what>(?:unaligned_)?(?:read|write|read_write)\d+)"
    r"\((?P<pointer>ptr [^)]*)\)(?P<rest>.*)$"
)
_RANGE = re.compile(
    r"^(?P<indent>\s+)(?P<result>%\S+ = )?(?:tail )?call ptr @__tsan_(?P<what>memcpy|memmove|memset)\((?P<args>.*?)\)"
    r"(?P<rest>(?: #\d+)?(?:, !\S+ !\d+)*)$"
)
_TRAP = re.compile(r"^(?P<indent>\s+)(?:tail )?call void @llvm\.(?:ubsan)?trap\([^)]*\)(?P<rest>.*)$")
_NODE = re.compile(r"^!(\d+) = (?:distinct )?!(DILocation|DISubprogram|DILexicalBlock\w*|DIFile)\((.*)\)$")
_DEFINE = re.compile(r"^define [^@]*@([\w.$]+)\(")
_CALL = re.compile(r"\bcall [^@]*@([\w.$]+)\(")
_DEBUG = re.compile(r"!dbg !(\d+)")


def instrument(ir: str, source: str) -> str:
    """Rewrites one module.

    Args:
        ir: LLVM IR of a kernel, compiled with `-fsanitize=thread`.
        source: the file name under which the Metal text was compiled; only its lines appear in messages.

    Raises:
        HostError: the kernel does something that sim cannot check (atomics), or accesses memory in too many places.
    """
    places = _Places(ir, source)
    lines: list[str] = []
    num_sites = 0
    for line in ir.splitlines():
        if match := _TRAP.match(line):
            rest = match["rest"]
            lines.append(f"{match['indent']}call void @mlxr_fail_private(i32 {places.of(rest)}){_only_debug(rest)}")
            continue
        if "@__tsan_" not in line:
            if not line.startswith("@llvm.compiler.used"):  # it only kept the checks from being removed
                lines.append(line)
            continue
        if match := _ACCESS.match(line):
            what, rest = match["what"], match["rest"]
            for kind in ("read", "write") if "read_write" in what else (what,):
                name = what.replace("read_write", kind) if kind in ("read", "write") else what
                arguments = f"{match['pointer']}, i32 {num_sites}, i32 {places.of(rest)}"
                lines.append(f"{match['indent']}call void @mlxr_check_{name}({arguments}){_only_debug(rest)}")
                num_sites += 1
        elif match := _RANGE.match(line):
            lines += _checked_range(match, places)
        elif line.startswith("declare") or "@__tsan_init" in line:
            lines.append(line)
        else:
            raise HostError(f"sim: the kernel in {source} uses something sim cannot check: {line.strip()}")
    _refuse_recursion(ir, source)
    if num_sites > MAX_SITES:
        raise HostError(
            f"sim: the kernel in {source} has {num_sites} places that access memory; sim allows {MAX_SITES}"
        )
    lines += [f"@{NUM_SITES} = constant i32 {num_sites}", "declare void @mlxr_fail_private(i32)"]
    for name, arguments in (("memcpy", "ptr, ptr, i64"), ("memmove", "ptr, ptr, i64"), ("memset", "ptr, i32, i64")):
        if not any(line.startswith("declare") and f"@{name}(" in line for line in lines):
            lines.append(f"declare ptr @{name}({arguments})")
    return "\n".join(lines) + "\n"


def _refuse_recursion(ir: str, source: str) -> None:
    """Refuses recursion, which Metal does not have; here it could overflow a fiber's stack."""
    calls: dict[str, set[str]] = {}
    current: set[str] = set()
    for line in ir.splitlines():
        if match := _DEFINE.match(line):
            current = calls.setdefault(match[1], set())
        elif match := _CALL.search(line):
            current.add(match[1])
    for start in calls:
        path = _cycle(calls, start)
        if path:
            raise HostError(
                f"sim: the kernel in {source} is recursive, which Metal does not allow: {' -> '.join(path)}"
            )


def _cycle(calls: dict[str, set[str]], start: str) -> list[str]:
    """A chain of calls from `start` back to it; empty if there is none."""
    came_from: dict[str, str] = {}
    waiting = [start]
    while waiting:
        caller = waiting.pop()
        for callee in calls.get(caller, ()):
            if callee == start:
                chain = [start]
                while caller != start:
                    chain.insert(0, caller)
                    caller = came_from[caller]
                return [start, *chain]
            if callee not in came_from:
                came_from[callee] = caller
                waiting.append(callee)
    return []


def _only_debug(rest: str) -> str:
    match = _DEBUG.search(rest)
    return f", {match.group()}" if match else ""


def _checked_range(match: "re.Match[str]", places: "_Places") -> list[str]:
    what, rest = match["what"], match["rest"]
    debug, site = _only_debug(rest), places.of(rest)
    to, second, size = (argument.strip() for argument in match["args"].split(","))
    if what == "memset":
        check = f"call void @mlxr_check_fill({to}, {size}, i32 {site}){debug}"
        value = second.removeprefix("i32 ")
    else:
        check = f"call void @mlxr_check_copy({to}, {second}, {size}, i32 {site}){debug}"
        value = ""
    call = f"{match['result'] or ''}call ptr @{what}({to}, {'i32 ' + value if value else second}, {size}){debug}"
    return [f"{match['indent']}{check}", f"{match['indent']}{call}"]


class _Places:
    """Lines and columns of debug locations: follows the metadata out of inlined calls to the Metal text."""

    def __init__(self, ir: str, source: str) -> None:
        self._nodes: dict[str, tuple[str, str]] = {}
        for line in ir[ir.find("\n!") :].splitlines():
            if match := _NODE.match(line):
                self._nodes[match[1]] = (match[2], match[3])
        self._source = source

    def of(self, rest: str) -> int:
        """The place (line << 12 | column) of an instruction's `!dbg !N`; 0 if it is not in the text."""
        match = _DEBUG.search(rest)
        number = match.group(1) if match else None
        while number is not None and number in self._nodes:
            _, fields = self._nodes[number]
            if self._file(_field(fields, "scope")) == self._source:
                line, column = int(_plain(fields, "line") or 0), int(_plain(fields, "column") or 0)
                return min(line, 2**19) << 12 | min(column, 4095)
            number = _field(fields, "inlinedAt")
        return 0

    def _file(self, number: str | None) -> str | None:
        """The file name of a scope."""
        while number is not None and number in self._nodes:
            kind, fields = self._nodes[number]
            if kind == "DIFile":
                match = re.search(r'filename: "([^"]*)"', fields)
                return match.group(1) if match else None
            number = _field(fields, "file") or _field(fields, "scope")
        return None


def _field(fields: str, name: str) -> str | None:
    match = re.search(rf"\b{name}: !(\d+)", fields)
    return match.group(1) if match else None


def _plain(fields: str, name: str) -> str | None:
    match = re.search(rf"\b{name}: (\d+)", fields)
    return match.group(1) if match else None
