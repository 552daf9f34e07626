"""Tells what a file is that was taken for a model's file: a Git LFS pointer, a picture, an archive."""

from pathlib import Path

_POINTER = b"version https://git-lfs.github.com/spec/"
_STARTS = (
    (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a zip archive: unpack it, and name what was in it"),
    (b"\x1f\x8b", "compressed by gzip: unpack it, and name what was in it"),
    (b"\xfd7zXZ\x00", "compressed by xz: unpack it, and name what was in it"),
    (b"BZh", "compressed by bzip2: unpack it, and name what was in it"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd: unpack it, and name what was in it"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it, and name what was in it"),
    (b"Rar!", "a RAR archive: unpack it, and name what was in it"),
    (b"\x7fELF", "a program"),
    (b"\xcf\xfa\xed\xfe", "a program"),
    (b"MZ", "a program"),
    (b"lmgg", "in the GGML format that came before GGUF: get the model as GGUF"),
    (b"tjgg", "in the GGML format that came before GGUF: get the model as GGUF"),
    (b"fmgg", "in the GGML format that came before GGUF: get the model as GGUF"),
    (b"SQLite format 3\x00", "a database"),
)
_PAGES = (b"<!doctype html", b"<html", b"<?xml")
_TAR, _TAR_AT = b"ustar", 257
_READ_BYTES = 512


def foreign_file(path: Path) -> str | None:
    """What a file is, by its first bytes, and how to go on.

    Args:
        path: of the file.

    Returns:
        Such as `a PNG picture`; None: it is none of the kinds that are known, or cannot be read, or is no file.
    """
    try:
        if not path.is_file():
            return None
        with path.open("rb") as stream:
            data = stream.read(_READ_BYTES)
    except (OSError, ValueError):
        return None
    if data.startswith(_POINTER):
        return (
            "a Git LFS pointer, a few lines that stand for the real file: fetch that with `git lfs pull` in its folder"
        )
    if data.lstrip().lower().startswith(_PAGES):
        return "a web page, not the file that it should be: fetch it by the address of the download itself"
    if data[_TAR_AT:].startswith(_TAR):
        return "a tar archive: unpack it, and name what was in it"
    return next((kind for start, kind in _STARTS if data.startswith(start)), None)
