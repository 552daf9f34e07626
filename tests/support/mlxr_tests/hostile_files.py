"""Files as a stranger might make them: cut, with flipped bits, or well-formed with false numbers and names."""

import json
import os
import resource
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from mlxr.compiler.errors import MlxrError
from mlxr_tests.few import examples

CASES = int(os.environ.get("MLXR_FUZZ_CASES") or examples(800, 200))
"""Number of cases of all tests that use these files; `make fuzz` takes 100,000."""
SECONDS = 2.0
BYTES = 1 << 30

EXTREMES = [0, 1, 2, 7, 31, 255, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]
NAMES = ["../../etc/passwd", "/dev/zero", "a/b", "", "\0", "x" * 300, "blk.0.attn_q.weight", "general.architecture"]
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@contextmanager
def bounded() -> Iterator[None]:
    """Fails if its body takes too long or too much memory, or raises anything but an MlxrError with a message."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else None
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if pages is not None:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, limits[1]))
    start = time.process_time()  # other processes do not count
    try:
        yield
    except MlxrError as error:
        assert 10 < len(str(error)) < 20_000
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert time.process_time() - start < SECONDS


@st.composite
def damaged(draw: st.DrawFn, data: bytes, header_bytes: int) -> bytes:
    """A file with some of its bytes changed, most of them in its header: flipped, extreme, cut out or doubled."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        limit = min(header_bytes, len(changed)) if draw(st.booleans()) or draw(st.booleans()) else len(changed)
        at = draw(st.integers(0, max(0, limit - 1)))
        kind = draw(st.sampled_from(["flip", "random", "u32", "u64", "cut", "double", "end"]))
        if kind == "flip" and changed:
            changed[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "random" and changed:
            changed[at] = draw(st.integers(0, 255))
        elif kind in ("u32", "u64"):
            size = 4 if kind == "u32" else 8
            number = draw(st.sampled_from(EXTREMES)) % (1 << 8 * size)
            changed[at : at + size] = number.to_bytes(size, "little")
        elif kind == "cut":
            del changed[at : at + draw(st.integers(1, 64))]
        elif kind == "double":
            changed[at:at] = changed[at : at + draw(st.integers(1, 64))]
        else:
            del changed[at:]
    return bytes(changed)


def _text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


@st.composite
def _values(draw: st.DrawFn, depth: int = 0) -> bytes:
    """A metadata value with its type: of any kind, nested, sometimes with false counts."""
    kind = draw(st.sampled_from([*_SCALARS, 8, 9, 9, 13, 99]))
    if kind in _SCALARS:
        size = struct.calcsize(_SCALARS[kind])
        return struct.pack("<I", kind) + draw(st.binary(min_size=size, max_size=size))
    if kind == 8:
        return struct.pack("<I", kind) + _text(draw(st.sampled_from(NAMES)))
    inner = draw(st.sampled_from([0, 4, 6, 8, 9]))
    items = [draw(_values(depth + 1))[4:] for _ in range(draw(st.integers(0, 3)))] if depth < 3 else []
    count = draw(st.sampled_from([len(items), len(items), *EXTREMES]))
    return struct.pack("<IIQ", 9, inner, count) + b"".join(items)


@st.composite
def lying_gguf(
    draw: st.DrawFn, metadata: dict[str, bytes], tensors: list[tuple[str, tuple[int, ...], int, int]]
) -> bytes:
    """A GGUF file with well-formed parts but arbitrary keys, types, dims, offsets and counts.

    Args:
        draw: hypothesis's function.
        metadata: key to typed value, as bytes; some are replaced or left out.
        tensors: name, dims, type and offset of each; some are replaced or left out.
    """
    entries = dict(metadata)
    for _ in range(draw(st.integers(0, 3))):
        key = draw(st.sampled_from([*metadata, *NAMES]))
        if draw(st.booleans()):
            entries[key] = draw(_values())
        else:
            entries.pop(key, None)
    infos = list(tensors)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(infos) - 1))
        name, dims, kind, offset = infos[at]
        what = draw(st.sampled_from(["name", "dims", "kind", "offset", "twice", "gone"]))
        if what == "name":
            name = draw(st.sampled_from([*NAMES, *(info[0] for info in tensors)]))
        elif what == "dims":
            dims = tuple(draw(st.lists(st.sampled_from([*EXTREMES, *dims]), max_size=6)))
        elif what == "kind":
            kind = draw(st.integers(0, 45) | st.sampled_from(EXTREMES)) % 2**32
        elif what == "offset":
            offset = draw(st.sampled_from(EXTREMES) | st.integers(0, 2**20).map(lambda n: n * 32))
        if what == "gone":
            del infos[at]
            if not infos:
                break
            continue
        infos[at] = (name, dims, kind, offset)
        if what == "twice":
            infos.append(infos[at])
    body = b"".join(_text(key) + value for key, value in entries.items())
    for name, dims, kind, offset in infos:
        body += _text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    counts = (draw(st.sampled_from([len(infos)] * 8 + EXTREMES)), draw(st.sampled_from([len(entries)] * 8 + EXTREMES)))
    head = b"GGUF" + struct.pack("<IQQ", 3, *counts) + body
    return head + b"\0" * (-len(head) % 32) + b"\0" * draw(st.sampled_from([0, 64, 4096, 1 << 16]))


@st.composite
def lying_safetensors(draw: st.DrawFn, header: dict[str, Any], data: bytes) -> bytes:
    """A safetensors file whose header may claim anything about the data."""
    entries: dict[str, Any] = {name: dict(entry) for name, entry in header.items()}
    numbers = st.sampled_from(EXTREMES) | st.integers(-5, 2**20)
    for _ in range(draw(st.integers(1, 4))):
        name = draw(st.sampled_from([*entries, *NAMES]))
        entry = dict(entries.get(name) or {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]})
        entries[name] = entry
        what = draw(st.sampled_from(["dtype", "shape", "data_offsets", "more", "gone", "odd"]))
        if what == "dtype":
            entry["dtype"] = draw(st.sampled_from(["F32", "BF16", "U8", "U32", "I64", "F8_E4M3", "F4", "", "X" * 99]))
        elif what == "shape":
            entry["shape"] = draw(st.lists(numbers, max_size=20))
        elif what == "data_offsets":
            entry["data_offsets"] = draw(st.lists(numbers, min_size=0, max_size=3))
        elif what == "more":
            entry["x"] = _nested(draw(st.sampled_from([1, 10, 2000])))
        elif what == "gone":
            del entries[name]
        else:
            entries[name] = draw(st.sampled_from([None, 0, "", [], {}]))
    try:
        text = json.dumps(entries).encode()
    except RecursionError:
        text = b"[" * 5000
    size = draw(st.sampled_from([len(text)] * 8 + EXTREMES))
    return struct.pack("<Q", size) + text + data


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(min(depth, 400)):
        value = [value]
    return value


_PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.sampled_from(EXTREMES)
_ANY = st.recursive(
    _PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


def changed_configs(config: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A config.json with some keys changed or added."""
    keys = st.sampled_from(
        [*config, "quantization", "rope_scaling", "rope_parameters", "layer_types", "model_type", "x"]
    )
    return st.dictionaries(keys, _ANY, max_size=4).map(lambda changes: config | changes)
