"""A pytest plugin for runs under the address sanitizer: it forbids access to memory between host cpu's weights.

The host keeps its weights in one block, so the sanitizer alone would not notice a read from one weight into the next.
"""

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from mlxr.compiler.artifact import CTensor
from mlxr.runtime.hosts.cpu import host as cpu_host
from mlxr.runtime.hosts.cpu import placing, tensors

_GAP_BYTES = 128


def pytest_configure(config: pytest.Config) -> None:
    """Puts gaps between weights, and poisons the gaps."""
    library = ctypes.CDLL(None)
    poison, allow = library.__asan_poison_memory_region, library.__asan_unpoison_memory_region
    for function in (poison, allow):
        function.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    align, place = placing.aligned, tensors.place_tensors

    def place_apart(planned: Sequence[CTensor], *arguments: Any) -> placing.PlacedTensors:
        placed = place(planned, *arguments)
        memory = placed.owners[-1]
        start = memory.ctypes.data
        for tensor, address in zip(planned, placed.addresses, strict=True):
            if start <= address < start + memory.nbytes:
                poison(address + tensor.size_bytes, align(tensor.size_bytes) - tensor.size_bytes + _GAP_BYTES)
        weakref.finalize(memory, allow, start, memory.nbytes)
        return placed

    placing.aligned = tensors.aligned = lambda size_bytes: align(size_bytes) + _GAP_BYTES
    cpu_host.place_tensors = place_apart
