"""A note to whoever loads a file of which MLXR computes a part: the text model."""

from mlxr.compiler.artifact import size
from mlxr.runtime.weights.weight_file import WeightFile

_WHAT = {
    "images": "tensors for images",
    "sound": "tensors for sound",
    "guesses": "tensors of layers that guess further tokens",
    "indexers": "tensors of indexers for longer contexts than are offered here",
}


def note_of_parts(file: WeightFile) -> str | None:
    """The note; None: the file has a text model alone."""
    if not file.beside:
        return None
    parts = (
        f"{len(tensors)} {_WHAT[part]} ({size(sum(tensor.size_bytes for tensor in tensors))})"
        for part, tensors in file.beside.items()
    )
    return f"{file.path}: {', '.join(parts)} are left alone; MLXR computes the text model"
