"""How fast this machine reads a disk, and its memory: measured once for a disk, and kept in the cache."""

import hashlib
import json
import mmap
import os
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

_FILE_BYTES, _PIECE_BYTES = 128 << 20, 256 << 10
"""A part of an expert has about the size of a piece."""
_ASKED = 16
"""Pieces that are asked for at once."""
_MOST_NUMBERS, _MOST_OF_THREAD = 512 << 20, 32 << 20
"""Bytes of memory that is read, in all and by a thread: memory is scarce when this is measured."""


@dataclass(frozen=True)
class ReadRates:
    """Bytes a second.

    Attributes:
        disk: of pieces of a mapped file in no order, as a program reads experts: several are asked for, and then used.
        memory: by all threads.
    """

    disk: float
    memory: float


def read_rates(folder: Path, threads: int) -> ReadRates | None:
    """The rates of the disk that a folder is on, and of memory; None: a file cannot be written there, or not be read.

    Args:
        folder: of the cache. It need not exist. The first call writes and removes a file of 128 MiB there.
        threads: that read memory.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        key = f"{folder.stat().st_dev} {threads}"
        kept = folder / f"disk-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        with suppress(OSError, ValueError, TypeError, KeyError):
            known = ReadRates(**json.loads(kept.read_text("utf-8")))
            if known.disk > 0 and known.memory > 0:
                return known
        rates = ReadRates(_disk_rate(folder), _memory_rate(threads))
        handle, name = tempfile.mkstemp(prefix=".new-", dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(asdict(rates), stream)
        Path(name).replace(kept)
    except OSError:
        return None
    return rates


def _disk_rate(folder: Path) -> float:
    handle, name = tempfile.mkstemp(prefix=".new-", dir=folder)
    try:
        piece = np.random.default_rng(0).bytes(_PIECE_BYTES)  # some disks compress
        for _ in range(_FILE_BYTES // _PIECE_BYTES):
            os.write(handle, piece)
        os.fsync(handle)
        _forget(handle)
        places = list(range(0, _FILE_BYTES, _PIECE_BYTES))
        random.Random(0).shuffle(places)
        with mmap.mmap(handle, 0, access=mmap.ACCESS_READ) as block:
            content = np.frombuffer(block, np.uint8)
            start = time.perf_counter()
            for first in range(0, len(places), _ASKED):
                group = places[first : first + _ASKED]
                for place in group if hasattr(mmap, "MADV_WILLNEED") else ():
                    block.madvise(mmap.MADV_WILLNEED, place, _PIECE_BYTES)
                for place in group:
                    content[place : place + _PIECE_BYTES : mmap.PAGESIZE].max()
            seconds = time.perf_counter() - start
            del content  # else the map could not be closed
        return _FILE_BYTES / seconds
    finally:
        os.close(handle)
        Path(name).unlink(missing_ok=True)


def _forget(handle: int) -> None:
    """Has the file's next bytes come from the disk."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    else:
        import fcntl  # noqa: PLC0415 (of macOS)

        fcntl.fcntl(handle, getattr(fcntl, "F_NOCACHE", 48), 1)


def _memory_rate(threads: int) -> float:
    """Sums of numbers that no cache holds: about as fast as products with quantised weights."""
    count = min(_MOST_OF_THREAD, _MOST_NUMBERS // threads) // np.uint64().nbytes
    numbers = [np.ones(count, np.uint64) for _ in range(threads)]
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(4):
            list(pool.map(np.sum, numbers))
    return 4 * sum(part.nbytes for part in numbers) / (time.perf_counter() - start)
