"""Kernels of the sim host: load a text, bind buffers, launch a grid."""

import ctypes
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlxr.compiler.errors import HostError, KernelFault
from mlxr.runtime.hosts.sim.build import ENTRY, build_runtime, load_kernel, load_runtime
from mlxr.runtime.hosts.sim.faults import describe
from mlxr.runtime.hosts.sim.instrument import NUM_SITES
from mlxr.runtime.hosts.sim.library import (
    COPIES,
    COPIES_LIMIT,
    MAX_BUFFERS,
    MAX_THREADS,
    THREADGROUP_LIMIT,
    CFault,
    CLaunch,
    load_library,
    num_workers,
)
from mlxr.runtime.hosts.sim.signature import Signature, parse_signature

_WRITABLE, _WRITTEN = 1, 2  # bits of SimBuffer.use in sim_runtime.h


@dataclass(frozen=True, slots=True)
class SimBuffer:
    """Memory that a kernel may touch.

    Attributes:
        address: address of the first byte.
        size_bytes: length; an access beyond it is a fault.
        writable: whether the kernel may write to it: true for outputs and arenas, false for other inputs.
        name: its name in messages.
        owner: the owner of the memory, kept alive as long as this buffer.
    """

    address: int
    size_bytes: int
    writable: bool
    name: str = ""
    owner: Any = None

    @classmethod
    def of(cls, array: Any, *, writable: bool, name: str = "") -> "SimBuffer":
        """The memory of a numpy array or an evaluated `mx.array`, never copied.

        Args:
            array: contiguous in row-major order. It is kept alive.
            writable: whether the kernel may write to it.
            name: its name in messages.

        Raises:
            HostError: the array is not contiguous (a kernel would see a copy), or is read-only but should be writable.
        """
        if not isinstance(array, np.ndarray):
            # A view of the array's own memory. It also works for bfloat16, which NumPy lacks: it shows bytes.
            view = memoryview(array)
            if not view.c_contiguous:
                raise HostError(
                    f"sim: array {name!r} of shape {tuple(array.shape)} is not contiguous; make it so first"
                )
            address = np.frombuffer(view, np.uint8).ctypes.data if view.nbytes else 0
            return cls(address, view.nbytes, writable, name, (array, view))
        if not array.flags.c_contiguous:
            raise HostError(f"sim: array {name!r} of shape {array.shape} is not contiguous; make it so first")
        if writable and not array.flags.writeable:
            raise HostError(f"sim: array {name!r} is read-only but is to be written")
        return cls(array.ctypes.data, array.nbytes, writable, name, array)


class SimKernel:
    """One kernel, ready to launch. It is immutable, so threads may share it.

    Attributes:
        name: the kernel function's name.
        params: its buffers, in the order of their indices.
    """

    def __init__(self, signature: Signature, library: ctypes.CDLL, copies: bool) -> None:
        self.name = signature.name
        self.params = signature.params
        self._library = library
        self._limit = COPIES_LIMIT if copies else THREADGROUP_LIMIT
        self._entry = ctypes.cast(getattr(library, ENTRY), ctypes.c_void_p).value
        self._num_sites = ctypes.c_uint32.in_dll(library, NUM_SITES).value
        self._use = tuple((0, _WRITABLE | _WRITTEN * (p.writable or p.in_place)) for p in self.params)
        self._launch = load_runtime(load_library).launch
        self._pack = struct.Struct(f"={3 * len(self.params)}Q").pack

    @classmethod
    def load(cls, text: str, *, name: str | None = None) -> "SimKernel":
        """Compiles a standalone Metal text, or finds it in the cache.

        Args:
            text: the complete `.metal` file.
            name: which kernel, if the text has several.

        Raises:
            HostError: no compiler, a text that does not compile, or a signature that sim does not know.
        """
        signature = parse_signature(text, name)
        if len(signature.params) > MAX_BUFFERS:
            raise HostError(
                f"sim: kernel {signature.name!r} has {len(signature.params)} buffers; Metal allows {MAX_BUFFERS}"
            )
        library = load_kernel(text, signature, lambda path: ctypes.CDLL(str(path)))
        return cls(signature, library, COPIES in text)

    def launch(
        self,
        buffers: Sequence[SimBuffer],
        threadgroups: tuple[int, int, int],
        threads: tuple[int, int, int],
        *,
        seed: int = 0,
    ) -> None:
        """Runs a grid and waits for it.

        Args:
            buffers: one for each parameter, in the order of `params`.
            threadgroups: threadgroups of the grid; a zero launches nothing.
            threads: threads of a threadgroup, 1024 at most.
            seed: decides the orders in which threads, simdgroups and threadgroups run.

        Raises:
            KernelFault: the kernel did something illegal; outputs are then undefined.
            HostError: buffers or grid do not fit the kernel.
        """
        if len(buffers) != len(self.params):
            expected = ", ".join(param.name for param in self.params)
            raise HostError(
                f"sim: kernel {self.name!r} takes {len(self.params)} buffers ({expected}), got {len(buffers)}"
            )
        values: list[int] = []
        for buffer, use in zip(buffers, self._use, strict=True):
            values += (buffer.address, buffer.size_bytes, use[buffer.writable])
        packed = self._pack(*values)
        count = threads[0] * threads[1] * threads[2]
        if count > MAX_THREADS or min(threads) < 0 or min(threadgroups) < 0:
            raise HostError(
                f"sim: kernel {self.name!r}: impossible grid {threadgroups} of {threads} threads (at most 1024)"
            )
        if count == 0 or 0 in threadgroups:
            return
        for param, buffer in zip(self.params, buffers, strict=True):
            if param.writable and not buffer.writable:
                raise HostError(f"sim: kernel {self.name!r} writes to {param.name!r}, but its buffer is not writable")
        launch = CLaunch(
            self._entry,
            _address_of(packed),
            len(buffers),
            threadgroups,
            threads,
            seed & (2**64 - 1),
            num_workers(),
            self._num_sites,
            self._limit,
        )
        fault = CFault()
        status = self._launch(ctypes.addressof(launch), ctypes.addressof(fault))
        if status == 0:
            return
        if status < 0:
            raise HostError("sim: cannot get memory or threads for the workers; lower MLXR_SIM_THREADS")
        raise KernelFault("sim: " + describe(self.name, fault, self.params, threadgroups, threads))


def _address_of(data: bytes) -> int:
    """The address of a bytes object's content, which lives as long as the object."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def prepare(texts: Mapping[str, str], progress: Callable[[int, int], None] | None = None) -> dict[str, SimKernel]:
    """Compiles a set of kernels in parallel.

    Args:
        texts: kernel name -> standalone Metal text.
        progress: called with (kernels ready, all kernels) as each becomes ready.

    Raises:
        HostError: as `SimKernel.load`, for the first text that fails.
    """
    build_runtime()
    kernels: dict[str, SimKernel] = {}
    with ThreadPoolExecutor(max_workers=max(1, min(len(texts), os.cpu_count() or 1))) as pool:
        futures = {name: pool.submit(SimKernel.load, text, name=name) for name, text in texts.items()}
        try:
            for name, future in futures.items():
                kernels[name] = future.result()
                if progress is not None:
                    progress(len(kernels), len(texts))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return kernels
