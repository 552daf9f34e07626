"""Importance matrices: how much an error in each column of a weight counts, by the inputs that it is multiplied with.

llama.cpp's programs write them in two forms, and both are read: GGUF files with sums of squares and counts of tokens,
and older ones (`.dat`) with means. Those that are written here are GGUF.

Source: common/imatrix-loader.cpp and tools/imatrix of https://github.com/ggml-org/llama.cpp (MIT).
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import WeightsError
from mlxr.quantise.block_quantiser import Floats
from mlxr.quantise.gguf_output import GgufTensor, entry, write_gguf
from mlxr.quantise.source_tensor import of_file
from mlxr.runtime.weights.gguf_header import GgufHeader, read_gguf_header
from mlxr.runtime.weights.stored_tensor import quoted

SUMS, COUNTS = ".in_sum2", ".counts"
_DATASETS, _CHUNKS, _CHUNK_TOKENS = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"
_NOTES = "quantize.imatrix."
_MOST_NAME_BYTES, _MOST_VALUES = 1 << 12, 1 << 28
_LONGEST_NOTE = 127  # of what llama.cpp keeps of a name


@dataclass(frozen=True)
class Importance:
    """An importance matrix.

    Attributes:
        path: its file.
        columns: by the tensor's name in GGUF files: one weight for each column of each of its matrices.
        dataset: what it was made of; empty: nobody says.
        chunks: of how many pieces of text.
    """

    path: Path
    columns: Mapping[str, Floats]
    dataset: str = ""
    chunks: int = 0

    def of(self, name: str, shape: tuple[int, ...]) -> Floats | None:
        """The weights of a tensor's columns: [matrices, columns]; None: it has none.

        Raises:
            WeightsError: they are not as many as the tensor has columns.
        """
        found = self.columns.get(name)
        if found is None or len(shape) < 2:
            return None
        matrices = shape[-3] if len(shape) > 2 else 1
        if found.size == matrices * shape[-1]:
            return found.reshape(matrices, shape[-1])
        if name == "token_embd.weight":
            return None
        raise WeightsError(
            f"{self.path}: has {found.size} weights for tensor {quoted(name)}, which has {matrices * shape[-1]} "
            "columns: it is another model's"
        )

    def check_model(self, names: Iterable[str]) -> None:
        """Checks that it is about a model with tensors of these names.

        Raises:
            WeightsError: it has weights for none of them.
        """
        if self.columns.keys().isdisjoint(names):
            raise WeightsError(f"{self.path}: has weights for no tensor of this model: it is another model's")

    @property
    def entries(self) -> list[tuple[str, bytes]]:
        """What quantised files say of it."""
        notes = [(f"{_NOTES}file", entry(str(self.path)[:_LONGEST_NOTE]))]
        if self.dataset:
            notes.append((f"{_NOTES}dataset", entry(self.dataset[:_LONGEST_NOTE])))
        notes.append((f"{_NOTES}entries_count", entry(len(self.columns), "u32")))
        if self.chunks > 0:
            notes.append((f"{_NOTES}chunks_count", entry(self.chunks, "u32")))
        return notes


def read_importance(path: Path) -> Importance:
    """Reads an importance matrix of either form.

    Raises:
        WeightsError: it cannot be read, is none, or has numbers that are not finite.
    """
    try:
        with path.open("rb") as stream:
            is_gguf = stream.read(4) == file_keys.GGUF_MAGIC
            stream.seek(0)
            found = None if is_gguf else _read_old(stream, path)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
    found = _read_gguf(path) if found is None else found
    for name, weights in found.columns.items():
        if not np.isfinite(weights).all():
            raise WeightsError(f"{path}: the weights of tensor {quoted(name)} are not all finite")
    return found


def _read_gguf(path: Path) -> Importance:
    header = read_gguf_header(path)
    columns = {}
    for name in header.tensors:
        if name.endswith(SUMS):
            tensor = name.removesuffix(SUMS)
            sums, counts = _numbers(header, path, name), _numbers(header, path, tensor + COUNTS)
            if sums.size == 0 or counts.size == 0 or sums.size % counts.size:
                raise WeightsError(f"{path}: has {counts.size} counts for {sums.size} sums of {quoted(tensor)}")
            sums = sums.reshape(counts.size, -1)
            counts = np.rint(counts).reshape(-1, 1).astype(np.float32)
            columns[tensor] = np.where(counts > 0, sums / np.maximum(counts, 1), np.float32(1)).ravel()
    datasets, chunks = header.metadata.get(_DATASETS), header.metadata.get(_CHUNKS)
    if not columns or not isinstance(datasets, list) or type(chunks) is not int:
        raise WeightsError(f"{path}: is a GGUF file, but no importance matrix")
    return Importance(path, columns, str(datasets[0]) if datasets else "", chunks)


def _numbers(header: GgufHeader, path: Path, name: str) -> Floats:
    tensor = header.tensors.get(name)
    if tensor is None or tensor.type != "F32":
        raise WeightsError(f"{path}: has no f32 tensor {quoted(name)}")
    source = of_file(tensor)
    return source.rows(0, source.num_rows).ravel()


def _read_old(stream: BinaryIO, path: Path) -> Importance:
    def take(size: int) -> bytes:
        data = stream.read(size) if 0 <= size <= 4 * _MOST_VALUES else b""
        if len(data) != size or not size:
            raise WeightsError(f"{path}: is not an importance matrix, or is cut short at byte {stream.tell()}")
        return data

    def number() -> int:
        return int(struct.unpack("<i", take(4))[0])

    columns = {}
    for _ in range(max(1, number())):
        name = take(min(number(), _MOST_NAME_BYTES)).decode("utf-8", "surrogateescape")
        calls, count = number(), number()
        sums = np.frombuffer(take(4 * count), "<f4")
        columns[name] = np.asarray(sums / np.float32(max(calls, 1)), np.float32)
    rest = stream.read(8)
    chunks, size = struct.unpack("<ii", rest) if len(rest) == 8 else (0, 0)
    dataset = stream.read(min(max(size, 0), _MOST_NAME_BYTES)).decode("utf-8", "surrogateescape")
    return Importance(path, columns, dataset, chunks)


def write_importance(
    path: Path, sums: Mapping[str, tuple[Floats, Sequence[int]]], dataset: str, chunks: int, chunk_tokens: int
) -> None:
    """Writes an importance matrix.

    Args:
        path: where.
        sums: by names of tensors: sums of the squares of each matrix's inputs, [matrices, columns], and of how many
            tokens.
        dataset: what text it was made of.
        chunks: how many pieces of it.
        chunk_tokens: tokens of a piece.

    Raises:
        MlxrError: it cannot be written.
    """
    tensors = []
    for name in sorted(sums):
        squares, counts = sums[name]
        for end, numbers in ((SUMS, squares), (COUNTS, np.array(counts, np.float32).reshape(-1, 1))):
            data = np.ascontiguousarray(numbers, np.float32)
            tensors.append(GgufTensor(name + end, data.shape, "f32", partial(list, [data.view(np.uint8)])))
    entries = [
        ("general.type", entry("imatrix")),
        (_DATASETS, entry([dataset])),
        (_CHUNKS, entry(chunks, "u32")),
        (_CHUNK_TOKENS, entry(chunk_tokens, "u32")),
    ]
    write_gguf(path, entries, tensors)
