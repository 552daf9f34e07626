"""Compiles a kernel's text to a cubin, cached by content.

    prelude + header + signature + body -> NVRTC -> cubin

MLX's own `cuda_kernel` would compile the same text, but with headers that take ten times as long, one kernel at a time,
and again in every process. So kernels are compiled here and given to MLX as `precompiled_cuda_kernel`.
"""

import functools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

from mlxr.compiler.artifact import INCLUDE, KernelEntry
from mlxr.runtime.hosts.cuda.compilers import COMPILERS
from mlxr.runtime.hosts.cuda.fatbin import compressed, find_nvfatbin
from mlxr.runtime.hosts.cuda.nvrtc import compile_cubin, version
from mlxr.runtime.hosts.library_cache import LibraryCache, digest
from mlxr.runtime.machine.threads import usable_cpus

_FLAGS = ("--std=c++17", "--device-as-default-execution-space")

_PRELUDE = ("metal_on_cuda.cuh", "clusters_on_cuda.cuh", "tiles_on_cuda.cuh")

AWAIT = "MLXR_AWAIT_INPUTS()"
"""The wait for what came before, see templates/README.md; kernels that say nothing of it begin with it."""
RESIDENT = "MLXR_RESIDENT"
"""Threadgroups that a multiprocessor has room for at once, of kernels that say how many."""
_BEGIN = "  [[maybe_unused]] bool mlxr_due = true;\n"
_LEADS, _LEAD = "MLXR_LEADS", "  MLXR_LEAD()\n"
"""A macro of kernels that let the next launch in when they begin, and that."""

_OWN_BYTES = 48 << 10
"""Shared memory that a block has unless its launch asks for more."""
_ROUNDING = 256
"""Bytes for the beginning of each array at a multiple of 16."""
_TILES, _OF_TILES = "MLXR_TILES(", 1024
"""An array of tiles, a kernel's first, and the multiple of bytes at which it begins."""

_cache = LibraryCache("cuda")
_building: dict[Path, Future[bytes]] = {}
"""What some thread compiles now, by its place in the cache."""
_lock = threading.Lock()


@functools.cache
def prelude() -> str:
    """The text that precedes every kernel."""
    return "".join(files("mlxr.templates").joinpath(f"hosts/{name}").read_text("utf-8") for name in _PRELUDE)


def with_prelude(text: str) -> str:
    """A step's text as the artifact has it, completed: the prelude stands between its macros and its kernels."""
    return text.replace(INCLUDE, prelude())


def cuda_source(kernel: KernelEntry, header: str, body: str) -> str:
    """A kernel's CUDA text; its function is extern "C" and has the kernel's name.

    Args:
        kernel: its entry in the plan.
        header: the part of its Metal file before the function.
        body: the body of the function in its Metal file.
    """
    body = _BEGIN + (_LEAD if _LEADS in header else "") + ("" if AWAIT in body else f"  {AWAIT}\n") + body
    ports = [f"const {port.dtype.metal}* {port.name}" for port in kernel.inputs]
    ports += [f"{port.dtype.metal}* {port.name}" for port in kernel.outputs]
    resident = f", {RESIDENT}" if RESIDENT in header else ""
    bounds = f"__launch_bounds__({kernel.threads}{resident})"
    signature = f'extern "C" __global__ void {bounds} {kernel.name}({", ".join(ports)})'
    if pool := pool_bytes(kernel):
        body = f"  uint mlxr_pool_at = 0;\n{body}"
        aligned = f"#define MLXR_POOL_ALIGNMENT {_OF_TILES}\n" if _TILES in body else ""
        return f"#define MLXR_POOL_BYTES {pool}\n{aligned}{prelude()}{header}{signature} {{\n{body}}}\n"
    return f"{prelude()}{header}{signature} {{\n{body}}}\n"


def pool_bytes(kernel: KernelEntry) -> int:
    """The shared memory that a launch asks for; 0: a block of the kernel has enough by itself."""
    return kernel.threadgroup_bytes + _ROUNDING if kernel.threadgroup_bytes > _OWN_BYTES else 0


def build_cubin(name: str, source: str, architecture: str) -> bytes:
    """Compiles a text for an architecture (`sm_90a`) to the smallest image possible, or finds it in the cache.

    Who wants a text that another thread compiles waits for that thread.

    Raises:
        HostError: no NVRTC, a text that does not compile, or a cache that cannot be written.
    """
    flags = (*_FLAGS, f"--gpu-architecture={architecture}")
    packer = "" if find_nvfatbin() is None else "compressed"
    target = _cache.folder() / f"{digest(source, *flags, str(version()), packer)}.cubin"
    if (image := _cache.read(target)) is not None:
        return image
    with _lock:
        begun, own = _building.get(target), Future[bytes]()
        if begun is None:
            _building[target] = own
    if begun is not None:
        return begun.result()
    try:
        cubin = _cache.read(target)  # another thread may have been done between the two looks
        if cubin is None:
            cubin = compressed(compile_cubin(name, source, flags), architecture)
            with _cache.workspace() as work:
                (work / "kernel.cubin").write_bytes(cubin)
                _cache.publish(work / "kernel.cubin", target)
        own.set_result(cubin)
    except BaseException as error:
        own.set_exception(error)
        raise
    finally:
        with _lock:
            del _building[target]
    return cubin


def build_cubins(
    sources: Mapping[str, str], architecture: str, progress: Callable[[int, int], None] | None = None
) -> dict[str, bytes]:
    """Compiles a set of kernels in parallel.

    Args:
        sources: kernel name -> CUDA text.
        architecture: `sm_90a`.
        progress: called with (kernels ready, all kernels) as each becomes ready.

    Raises:
        HostError: as `build_cubin`, for the first text that fails.
    """
    cubins: dict[str, bytes] = {}
    with COMPILERS.wanted(), ThreadPoolExecutor(max(1, min(len(sources), usable_cpus()))) as pool:
        futures = {name: pool.submit(build_cubin, name, text, architecture) for name, text in sources.items()}
        try:
            for name, future in futures.items():
                cubins[name] = future.result()
                if progress is not None:
                    progress(len(cubins), len(sources))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return cubins
