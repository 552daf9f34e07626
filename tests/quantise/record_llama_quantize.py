"""Records what llama-quantize makes of small files: python tests/quantise/record_llama_quantize.py LLAMA_QUANTIZE.

Of the tiny model in f32, with importance matrices of both forms, a hash of the first rows of all matrices; of models of
other shapes, whose weights do not matter, a hash of which tensor gets which format.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mlxr.quantise.mixtures import MIXTURES
from mlxr_tests.quantised_files import (
    IMPORTANT,
    RECORDED,
    SHAPES,
    formats_digest,
    rows_digest,
    write_importances,
    write_shape,
)
from mlxr_tests.storyteller import GOLDEN


def _run(program: str, *words: object) -> None:
    subprocess.run([program, *map(str, words)], check=True, capture_output=True)


def record(program: str, folder: Path) -> dict[str, dict[str, dict[str, str]]]:
    """What it makes of each of them."""
    out = folder / "out.gguf"

    def made(*words: object) -> Path:
        _run(program, *words)
        return out

    def theirs(name: str) -> str:
        return "mxfp4_moe" if name == "mxfp4" else name

    important = {}
    for matrix in write_importances(folder):
        words: Sequence[object] = ("--imatrix", matrix, GOLDEN / "tiny-f32.gguf", out)
        important[matrix.suffix] = {name: rows_digest(made(*words, theirs(name))) for name in IMPORTANT}
    shapes: dict[str, dict[str, str]] = {}
    for shape in SHAPES:
        path = write_shape(shape, folder / "shape.gguf")
        names = [name for name in MIXTURES if name != "q2_k_s"]
        shapes[shape] = {name: formats_digest(made(path, out, theirs(name))) for name in names}
    return {"important": important, "shapes": shapes}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        RECORDED.write_text(json.dumps(record(sys.argv[1], Path(temporary)), indent=1) + "\n")
