"""The first bytes of weight files on the hub, in which a model describes itself, as files that are otherwise empty."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from mlxr.compiler.errors import WeightsError
from mlxr.compiler.importers.gguf import FACTOR_TENSORS
from mlxr.compiler.version import VERSION
from mlxr.hub.choose_files import HubFile
from mlxr.runtime.weights.gguf_header import GgufHeader, read_gguf_header
from mlxr.runtime.weights.safetensors_header import MAX_HEADER_BYTES

StartReader = Callable[[HubFile, int, int], bytes | None]
"""Bytes of a file on the hub, from one place to another; fewer if it ends before; None: the hub sends no parts."""

_FIRST, _MOST = 1 << 22, 1 << 28
"""Bytes that are asked for at first (a vocabulary takes 2 to 10 MiB), and at most."""
_FIRST_OF_TENSORS = 1 << 18
"""Bytes that are asked for at first of safetensors, which have no vocabulary: a model may have hundreds of files."""


def write_safetensors_starts(files: Sequence[HubFile], folder: Path, start_of: StartReader) -> bool:
    """Writes safetensors files into a folder, as long as they are, with their headers.

    Args:
        files: them.
        folder: where to.
        start_of: reads first bytes.

    Returns:
        Whether the hub sends parts of files, and they have headers.
    """
    for file in files:
        start = start_of(file, 0, min(_FIRST, _FIRST_OF_TENSORS))
        if start is None or len(start) < 8:
            return False
        end = 8 + int.from_bytes(start[:8], "little")
        if end > min(file.size_bytes, MAX_HEADER_BYTES):
            return False
        if end > len(start):
            begin = 0 if end <= _FIRST else len(start)  # a hub that sends no parts sends beginnings
            rest = start_of(file, begin, end)
            if rest is None:
                return False
            start = start[:begin] + rest
        path = folder / file.path
        path.write_bytes(start[:end])
        with path.open("r+b") as stream:
            stream.truncate(file.size_bytes)  # a sparse file: it takes no room on the disk
    return True


def write_starts(files: Sequence[HubFile], folder: Path, start_of: StartReader) -> Path | None:
    """Writes a file for each part of a GGUF model: as long as it, with the bytes in which it describes itself.

    Args:
        files: its parts, in order.
        folder: where to.
        start_of: reads first bytes.

    Returns:
        The first one; None: the hub sends no parts of files, or they have no header.
    """
    for file in files:
        path = folder / PurePosixPath(file.path).name
        count = _FIRST
        while True:
            start = start_of(file, 0, count)
            if start is None:
                return None
            path.write_bytes(start)
            with path.open("r+b") as stream:
                stream.truncate(file.size_bytes)  # a sparse file: it takes no room on the disk
            header = _header(path, len(start))
            if header is not None:
                break
            if len(start) < count or count >= _MOST:
                return None
            count *= 4
        for name in FACTOR_TENSORS:  # small tensors that are read with the header
            if (tensor := header.tensors.get(name)) is not None and tensor.offset >= len(start):
                piece = start_of(file, tensor.offset, tensor.offset + tensor.size_bytes)
                with path.open("r+b") as stream:
                    stream.seek(tensor.offset)
                    stream.write(piece or b"")
    return folder / PurePosixPath(files[0].path).name


def _header(path: Path, size_bytes: int) -> GgufHeader | None:
    """The header of a file of which the first bytes are there; None: it goes on beyond them."""
    try:
        header = read_gguf_header(path)
    except WeightsError:
        return None
    first = min((tensor.offset for tensor in header.tensors.values()), default=0)
    return header if first <= size_bytes else None


def hub_starts(repo: str, commit: str) -> StartReader:
    """Reads bytes of files of a commit. It raises what huggingface_hub raises; see `worded`."""

    def read(file: HubFile, begin: int, end: int) -> bytes | None:
        from huggingface_hub import constants, hf_hub_url  # noqa: PLC0415 (slow to import)

        utils: Any = importlib.import_module("huggingface_hub.utils")  # its annotations do not say what it exports
        end = min(end, file.size_bytes)
        headers = utils.build_hf_headers(library_name="mlxr", library_version=VERSION)
        headers |= {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        url = hf_hub_url(repo, file.path, revision=commit, endpoint=constants.ENDPOINT)
        session = utils.get_session()
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with session.stream("GET", url, headers=headers, follow_redirects=True, timeout=timeout) as response:
            utils.hf_raise_for_status(response)
            if response.status_code != 206 and begin:
                return None
            content = bytearray()
            for piece in response.iter_bytes():
                content += piece
                if len(content) >= end - begin:
                    break
            return bytes(content[: end - begin])

    return read
