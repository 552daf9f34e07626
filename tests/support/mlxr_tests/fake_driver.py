"""Stands in for NVIDIA's driver: memory of the card is memory of this process, and each allocation is counted."""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlxr.runtime.hosts.cuda import driver

_ALIGNMENT = 256


class FakeDriver:
    """The functions that allocate, fill and free.

    Attributes:
        pinned, on_card: what is allocated now, by address.
        allocated: how often something was.
        retained: how often more the context was retained than released.
    """

    def __init__(self) -> None:
        self.pinned: dict[int, npt.NDArray[np.uint8]] = {}
        self.on_card: dict[int, npt.NDArray[np.uint8]] = {}
        self.allocated = self.retained = 0

    def __getattr__(self, name: str) -> Any:
        """A function that does nothing, such as `cuInit`."""
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *_: 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802 (the driver's)
        """Counts it."""
        self.retained += 1
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: Any) -> int:  # noqa: N802
        """Counts it."""
        self.retained -= 1
        return 0

    def cuMemHostAlloc(self, address: Any, size: Any, flags: int) -> int:  # noqa: N802
        """Allocates what both see."""
        address._obj.value = self._allocate(self.pinned, size.value)
        return 0

    def cuMemHostGetDevicePointer_v2(self, address: Any, pinned: Any, flags: int) -> int:  # noqa: N802
        """The same address."""
        address._obj.value = pinned.value
        return 0

    def cuMemFreeHost(self, address: Any) -> int:  # noqa: N802
        """Frees what both see."""
        return 0 if self.pinned.pop(address.value, None) is not None else 1

    def cuMemAlloc_v2(self, address: Any, size: Any) -> int:  # noqa: N802
        """Allocates what the card sees."""
        address._obj.value = self._allocate(self.on_card, size.value)
        return 0

    def cuMemsetD8Async(self, address: Any, value: Any, size: Any, stream: Any) -> int:  # noqa: N802
        """Fills it."""
        ctypes.memset(address.value, value.value, size.value)
        return 0

    def cuMemcpyHtoDAsync_v2(self, address: Any, source: Any, size: Any, stream: Any) -> int:  # noqa: N802
        """Copies at once."""
        ctypes.memmove(address.value, source.value, size.value)
        return 0

    def cuCtxSynchronize(self) -> int:  # noqa: N802
        """Nobody calls it."""
        raise AssertionError("to wait for the whole context would spoil what MLX captures in another thread")

    def cuMemFree_v2(self, address: Any) -> int:  # noqa: N802
        """Frees what the card sees."""
        return 0 if self.on_card.pop(address.value, None) is not None else 1

    @property
    def pinned_bytes(self) -> int:
        """Bytes that both see."""
        return sum(memory.size - _ALIGNMENT for memory in self.pinned.values())

    def _allocate(self, among: dict[int, npt.NDArray[np.uint8]], size: int) -> int:
        self.allocated += 1
        memory = np.zeros(size + _ALIGNMENT, np.uint8)
        address = -(-memory.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        among[address] = memory
        return address


def use_driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Has calls of the driver go to a fake one."""
    fake = FakeDriver()
    monkeypatch.setattr(driver, "_driver", lambda: fake)
    return fake
