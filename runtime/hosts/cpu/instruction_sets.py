"""Sets of instructions that the C program can be held to by name, in `$MLXR_CPU_ARCH`; each includes those before it.

Held to less than this CPU has, the program has no instruction of a newer set: the same code runs on older machines. A
set that this CPU lacks is refused.
"""

import ctypes
import os
import platform
import re
from dataclasses import dataclass

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cpu.processor import features, native_flags

VARIABLE = "MLXR_CPU_ARCH"


@dataclass(frozen=True)
class InstructionSet:
    """A set of instructions.

    Attributes:
        name: its name in `$MLXR_CPU_ARCH`.
        cpu: the oldest CPU that has it, as GCC and clang take it after `-march=`, in which `_` would be `-`.
        extensions: what it adds to `cpu`, as the compilers name it.
        needs: features that a CPU must have, as `features` names them.
    """

    name: str
    cpu: str
    extensions: tuple[str, ...]
    needs: frozenset[str]

    def flags(self, *, is_zig: bool) -> tuple[str, ...]:
        """The flags that hold a compiler to it. Zig takes extensions only with the CPU, under names of its own."""
        if is_zig:
            cpu = "generic" if self.cpu.startswith("armv8") else self.cpu.replace("-", "_")
            names = [name.replace("amx-", "amx_") for name in self.extensions]
            return (f"-mcpu={'+'.join([cpu, *names])}",)
        if self.cpu.startswith("armv8"):
            return (f"-march={'+'.join([self.cpu, *self.extensions])}",)
        return (f"-march={self.cpu}", *(f"-m{name}" for name in self.extensions))

    @property
    def missing(self) -> list[str]:
        """Features that this CPU lacks of it; none where the system does not say what the CPU has."""
        found = features()
        return sorted(self.needs - found) if found else []


_V3 = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_BF16 = (*_V4, "avx512_vnni", "avx512_bf16")
_AMX_EXTENSIONS = ("avx512vnni", "avx512bf16", "amx-tile", "amx-int8", "amx-bf16")

_X86 = (
    InstructionSet("x86-64-v2", "x86-64-v2", (), frozenset({"ssse3", "sse4_1", "sse4_2", "popcnt"})),
    InstructionSet("x86-64-v3", "x86-64-v3", (), frozenset(_V3)),
    InstructionSet("x86-64-v4", "x86-64-v4", (), frozenset(_V4)),
    InstructionSet("vnni", "x86-64-v4", ("avx512vnni",), frozenset({*_V4, "avx512_vnni"})),
    InstructionSet("bf16", "x86-64-v4", ("avx512vnni", "avx512bf16"), frozenset(_BF16)),
    InstructionSet("amx", "x86-64-v4", _AMX_EXTENSIONS, frozenset({*_BF16, "amx_tile", "amx_int8", "amx_bf16"})),
    # Of CPUs without AVX-512: the only one that does not include the one before it.
    InstructionSet("avx-vnni", "x86-64-v3", ("avxvnni",), frozenset({*_V3, "avx_vnni"})),
)
_ARM = (
    InstructionSet("neon", "armv8-a", (), frozenset({"asimd"})),
    InstructionSet("dotprod", "armv8.2-a", ("dotprod",), frozenset({"asimd", "asimddp"})),
    InstructionSet("i8mm", "armv8.2-a", ("dotprod", "i8mm"), frozenset({"asimd", "asimddp", "i8mm"})),
)


def instruction_sets() -> tuple[InstructionSet, ...]:
    """The sets of this kind of CPU, whether it has them or not."""
    machine = platform.machine()
    return _X86 if machine in {"x86_64", "AMD64"} else _ARM if machine in {"aarch64", "arm64"} else ()


def machine_flags(*, is_zig: bool = False) -> tuple[str, ...]:
    """The flags that name the CPU: this one, or the set or CPU that `$MLXR_CPU_ARCH` names.

    A name that is no set of ours is given to the compiler, which knows CPUs by name.

    Raises:
        HostError: this CPU lacks the set, or `$MLXR_CPU_ARCH` is not the name of anything.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        return native_flags()
    for found in instruction_sets():
        if found.name == name:
            if found.missing:
                has = ", ".join(other.name for other in instruction_sets() if not other.missing)
                raise HostError(
                    f"{VARIABLE}={name} needs {', '.join(found.missing)}, which this CPU does not have; it has {has}"
                )
            return found.flags(is_zig=is_zig)
    if not re.fullmatch(r"[\w.+-]+", name):
        sets = ", ".join(other.name for other in instruction_sets())
        raise HostError(f"{VARIABLE}={name!r} is not the name of a CPU or of one of {sets}; correct or unset it")
    option = native_flags()[0].partition("=")[0]
    return (f"{option}={name.replace('-', '_') if is_zig else name}",)


# What a compiler says that it was allowed to use, by what it defines.
_DEFINED = {
    "__SSSE3__": "ssse3",
    "__SSE4_1__": "sse4_1",
    "__SSE4_2__": "sse4_2",
    "__AVX__": "avx",
    "__AVX2__": "avx2",
    "__FMA__": "fma",
    "__F16C__": "f16c",
    "__BMI2__": "bmi2",
    "__AVXVNNI__": "avx_vnni",
    "__AVX512F__": "avx512f",
    "__AVX512BW__": "avx512bw",
    "__AVX512DQ__": "avx512dq",
    "__AVX512VL__": "avx512vl",
    "__AVX512VNNI__": "avx512_vnni",
    "__AVX512BF16__": "avx512_bf16",
    "__AMX_TILE__": "amx_tile",
    "__AMX_INT8__": "amx_int8",
    "__AMX_BF16__": "amx_bf16",
    "__ARM_FEATURE_DOTPROD": "asimddp",
    "__ARM_FEATURE_MATMUL_INT8": "i8mm",
    "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC": "asimdhp",
    "__ARM_FEATURE_BF16": "bf16",
    "__ARM_FEATURE_SVE": "sve",
}
_SYMBOL = "mlxr_needs"


def marker() -> str:
    """C text that leaves in a library which features it was compiled for."""
    words = "".join(f'#ifdef {defined}\n"{feature} "\n#endif\n' for defined, feature in _DEFINED.items())
    return f'__attribute__((used, visibility("default"))) const char {_SYMBOL}[] =\n{words}"";\n'


def check_features(library: ctypes.CDLL) -> None:
    """Refuses a library that was compiled, at the user's wish, for features that this CPU lacks.

    Raises:
        HostError: it was.
    """
    wishes = [f"{name}={os.environ[name]}" for name in (VARIABLE, "MLXR_CPU_CFLAGS") if os.environ.get(name)]
    if not (wishes and features()):
        return
    needed = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, _SYMBOL))).decode().split()
    if lacking := sorted(set(needed) - features()):
        raise HostError(
            f"{' '.join(wishes)}: what was compiled needs {', '.join(lacking)}, which this CPU does not have"
        )
