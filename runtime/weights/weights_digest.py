"""A cheap digest of a weight file, by which saved K and V of other weights are told apart."""

import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.stored_tensor import StoredTensor
from mlxr.runtime.weights.weight_file import WeightFile

_SAMPLE_BYTES = 2048


def weights_digest(file: WeightFile) -> str:
    """128 bits of BLAKE2b over the table of tensors, the sizes of the files, and samples of every tensor.

    The samples are the first, middle and last 2 KiB of each tensor; a tensor of up to 6 KiB is read whole. Training,
    merging, quantising and converting change numbers everywhere in the tensors that they change, so a sample of each
    shows it. What this misses: an edit of some rows of a tensor that leaves its first, middle and last 2 KiB as they
    were, such as new embeddings of a few tokens in the same file size. Reading all bytes would take as long as loading.

    Args:
        file: an opened weight file. Names and places of its files do not matter.

    Returns:
        32 hexadecimal digits.

    Raises:
        WeightsError: a file cannot be read.
    """
    digest = blake2b(digest_size=16)
    by_file: dict[Path, list[StoredTensor]] = {}
    for tensor in file.tensors.values():
        for plane in tensor.stored:
            by_file.setdefault(plane.file, []).append(plane)
    for path, tensors in by_file.items():
        try:
            with path.open("rb", buffering=0) as stream:
                digest.update(f"{file.format} {os.fstat(stream.fileno()).st_size}\n".encode())
                for tensor in tensors:
                    table = (tensor.name, tensor.type, tensor.shape, tensor.offset)
                    digest.update(repr(table).encode("utf-8", "surrogatepass") + b"\n")
                    for start, stop in _samples(tensor):
                        stream.seek(start)
                        digest.update(stream.read(stop - start))
        except OSError as error:
            raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def _samples(tensor: StoredTensor) -> Iterator[tuple[int, int]]:
    """The ranges of bytes of the file that are read of a tensor."""
    first, last = tensor.offset, tensor.offset + tensor.size_bytes
    if tensor.size_bytes <= 3 * _SAMPLE_BYTES:
        yield first, last
        return
    middle = (first + last - _SAMPLE_BYTES) // 2
    for start in (first, middle, last - _SAMPLE_BYTES):
        yield start, start + _SAMPLE_BYTES
