"""Memory that ranks share is only taken where all of them can."""

import os
from pathlib import Path

import pytest

from mlxr.runtime.parallel.shared_memory import SharedMemory


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="ranks share no memory here")
def test_nothing_stays_mapped_where_ranks_do_not_agree() -> None:
    answers = [b"\1", b"\1"]

    def gather(data: bytes) -> list[bytes]:  # the other rank has the same memory
        return [data, data] if len(data) > 1 else answers

    maps = Path("/proc/self/maps")
    shared = SharedMemory(1 << 16, 0, (0, 1), gather)
    assert len(shared.addresses) == 2 and maps.read_text().count("memfd:mlxr-rank") == 2
    del shared
    answers = [b"\1", b"\0"]
    shared = SharedMemory(1 << 16, 0, (0, 1), gather)
    assert not shared.addresses and "memfd:mlxr-rank" not in maps.read_text()
