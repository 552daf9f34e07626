"""Records what llama.cpp makes of the texts of `made_vocabularies`: python tests/runtime/tokenizer/record_llama_ids.py.

It needs llama-cpp-python; the file that it writes was made with 0.3.36. For each vocabulary it has the ids of each
text: plain, with the names of special tokens read as these, and these with what llama.cpp puts around a text.
"""

import ctypes
import json
import tempfile
from pathlib import Path

import llama_cpp

from mlxr_tests.made_vocabularies import TEXTS, made_vocabularies
from mlxr_tests.vocabularies import write_gguf

PLACE = Path(__file__).parents[2] / "data/llama_cpp_ids.json"


def main() -> None:
    """Writes the file."""
    recorded = {}
    options = llama_cpp.llama_model_default_params()
    options.vocab_only = True
    with tempfile.TemporaryDirectory() as folder:
        for name, metadata in made_vocabularies().items():
            path = write_gguf(Path(folder) / "x.gguf", metadata)
            vocab = llama_cpp.llama_model_get_vocab(llama_cpp.llama_model_load_from_file(str(path).encode(), options))
            recorded[name] = {text: [ids_of(vocab, text, *how) for how in ((0, 0), (0, 1), (1, 1))] for text in TEXTS}
    lines = [f"{json.dumps(name)}: {json.dumps(rows, ensure_ascii=False)}" for name, rows in recorded.items()]
    PLACE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def ids_of(vocab: object, text: str, around: int, special: int) -> list[int]:
    """The ids of a text."""
    data = text.encode()
    ids = (ctypes.c_int32 * (4 * len(data) + 8))()
    count = llama_cpp.llama_tokenize(vocab, data, len(data), ids, len(ids), bool(around), bool(special))
    return list(ids[:count])


if __name__ == "__main__":
    main()
