"""Identifies this CPU, as far as compiled code depends on it.

Invariant: this is cheap, because every start does it; it runs no compiler and no other program.
"""

import ctypes
import functools
import platform
import re
import sys
from pathlib import Path

_KEYS = (
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "flags",
    "Features",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
    "isa",
    "uarch",
    "cpu",
)
_SYSCTLS = ("machdep.cpu.brand_string", "machdep.cpu.features", "machdep.cpu.leaf7_features")
# Linux's names of ARM features, with their bits of AT_HWCAP and AT_HWCAP2; macOS's, by which they are asked for.
_AT_HWCAP, _AT_HWCAP2 = 16, 26
_HWCAP = {"asimd": 1, "asimdhp": 10, "asimddp": 20, "sve": 22}
_HWCAP2 = {"i8mm": 13, "bf16": 14}
_APPLE = {"asimdhp": "FP16", "asimddp": "DotProd", "i8mm": "I8MM", "bf16": "BF16"}
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18
_FIRST_BYTES = 1 << 16


@functools.cache
def processor_identity() -> str:
    """Everything that `-march=native` may depend on: the CPU's model and features, as the system reports them."""
    words = [sys.platform, platform.machine()]
    if sys.platform == "darwin":
        words += [_sysctl(name) for name in _SYSCTLS]
    else:
        words += [f"{key}: {value}" for key, value in _cpuinfo().items() if key in _KEYS]
    return "\n".join(words)


@functools.cache
def native_flags() -> tuple[str, ...]:
    """The flags that let a compiler use all features of this CPU that this process may use."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ("-mcpu=native",)
    if "amx_tile" in _cpuinfo().get("flags", "").split() and "amx_tile" not in features():
        return ("-march=native", "-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
    return ("-march=native",)


@functools.cache
def features() -> frozenset[str]:
    """What this CPU can do and this process may use, as /proc/cpuinfo names it; empty where no one says."""
    if platform.machine() in ("aarch64", "arm64"):
        return frozenset(_arm_features())
    if sys.platform == "darwin":
        words = " ".join(map(_sysctl, _SYSCTLS[1:])).lower()
        return frozenset(words.replace("avx1.0", "avx").replace(".", "_").split())
    found = set(_cpuinfo().get("flags", "").split())
    if "amx_tile" in found and not _may_use_amx():
        found -= {"amx_tile", "amx_int8", "amx_bf16"}
    return frozenset(found)


def _arm_features() -> list[str]:
    """Of ARM, from the kernel: /proc/cpuinfo may be another machine's, as under qemu."""
    if sys.platform == "darwin":
        return ["asimd", *(name for name, key in _APPLE.items() if _has(f"hw.optional.arm.FEAT_{key}"))]
    if sys.platform != "linux":
        return []
    ask = ctypes.CDLL(None).getauxval
    ask.restype, ask.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    words = ((ask(_AT_HWCAP), _HWCAP), (ask(_AT_HWCAP2), _HWCAP2))
    return [name for word, bits in words for name, bit in bits.items() if word >> bit & 1]


def _may_use_amx() -> bool:
    """Asks Linux for permission to use the AMX registers, for the whole process. A container may refuse it."""
    library = ctypes.CDLL(None)
    answer: int = library.syscall(
        ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_ARCH_REQ_XCOMP_PERM), ctypes.c_long(_XTILEDATA)
    )
    return answer == 0


@functools.cache
def _cpuinfo() -> dict[str, str]:
    """What /proc/cpuinfo says of the first processor. The whole file takes long on large machines."""
    try:
        with Path("/proc/cpuinfo").open("rb", buffering=0) as file:
            text = b""
            while b"\n\n" not in text and len(text) < _FIRST_BYTES and (more := file.read(4096)):
                text += more
    except OSError:
        return {}
    lines = text.decode("utf-8", "replace").partition("\n\n")[0]
    return {m[1].strip(): m[2].strip() for m in re.finditer(r"^([^:\n]+):(.*)$", lines, re.MULTILINE)}


def _sysctl(name: str) -> str:
    size = ctypes.c_size_t(4096)
    buffer = ctypes.create_string_buffer(size.value)
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0))
    return "" if failed else buffer.value.decode("utf-8", "replace")


def _has(name: str) -> bool:
    """Whether a number of the system's is there and not 0."""
    size, value = ctypes.c_size_t(4), ctypes.c_int32()
    failed = ctypes.CDLL(None).sysctlbyname(
        name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
    )
    return not failed and bool(value.value)
