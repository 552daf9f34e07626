"""Compares MLXR's tokenizers with those that others use, on real files.

    python benchmarks/tokenizer_ids.py FOLDER_OR_FILE...

Each argument is a .gguf file, a folder with the tokenizer of a model, or a folder of such files and folders. A GGUF
file is compared with llama.cpp (the package llama-cpp-python), a tokenizer.json with the `tokenizers` library, a
sentencepiece model with sentencepiece, other files with transformers. A file X.gguf.inp beside X.gguf has texts,
X.gguf.out their ids, as llama.cpp's repository has them.

Of 200 texts it prints how many have the reference's ids: plain, with names of special tokens read as these, and with
what the model puts around a text; how many come back from ids as from the reference; and how many are the same when
they are decoded token by token. `--show N` prints the first N differences of each kind.
"""

import argparse
import ctypes
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from mlxr.compiler.errors import MlxrError
from mlxr.runtime.tokenizer import Tokenizer, load_tokenizer
from mlxr.runtime.tokenizer.gguf_vocabulary import has_vocabulary
from mlxr.runtime.weights import gguf_metadata

_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
_COLUMNS = ("plain", "special", "around", "round trip", "streamed")
_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt")
_SENTENCES = """\
The quick brown fox jumps over the lazy dog. It's 12:45, isn't it? We'LL see THEY'RE DOING; I've $1,234.56 (7.5 %).
Älter wird größer: Straße, naïve façade, señor, œuvre, Žluťoučký kůň, İstanbul, ﬁne ½ ² Ⅷ € £ © ™ … “q” ‘s’ — –
Привет, мир! Как дела? Ελληνικά γράμματα. ქართული ენა. Հայերեն. Українська мова.
你好，世界。今天天气很好！「東京」で3回カタカナを。ﾊﾝｶｸ 안녕하세요 세계. 한국어 문장. ㄅㄆㄇ
مرحبا بالعالم، ١٢٣ كتب. שלום עולם. नमस्ते दुनिया, हिन्दी में। สวัสดีชาวโลก. বাংলা ভাষা। தமிழ் மொழி. ລາວ ភាសាខ្មែរ မြန်မာ
👩‍👩‍👧‍👦 🇩🇪👍🏽 ☃️ → ∑ ∫ ≈ ∅ 🎉🎉🎉 ✅ ⓐ 𝔘𝔫𝔦 🀄 ⠓⠑ ♞
e\u0301 A\u030a n\u0303 o\u0308\u0323 \u1112\u1161\u11ab q\u0307\u0323 Å \u212b \ufb01 \u0958
"""
_CODE = """\
def fib(n: int) -> int:
    if n < 2:
        return n
    return fib(n - 1) + fib(n - 2)

\tfor (size_t i = 0; i < 10; ++i) {\n\t\ta[i] += 0x1F;   /* comment */\n\t}\r\n\r\n#include <stdio.h>
<html>\n  <body class="x">\n    <h1>Title</h1>\n\n\n\n\t\t<p>Text &amp; more</p>\n  </body>\n</html>
SELECT * FROM users WHERE id=42 AND name LIKE '%O''Brien%';  -- 100%\nx = {"a": [1, 2.5, -3e10], "b": null}
"""
_ODD = [
    "", " ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\t", "\t\t", " \t ", "\r\n", "\r", "a", " a", "a ", "  a  ",
    "\x00", "a\x00b", "\x01\x02\x1b[0m", "\x7f\x80\x9f", "\u00a0a\u00a0", "a\u00adb", "\u200b\u200d\u2060",
    "\ufeffbom", "\ufffd", "\u2028\u2029", "\u3000wide\u3000", "\u2581", "a\u2581b", "\u2581\u2581x", "1", "12", "123",
    "1234",
    "12345678901234567890", "3.14159", "1,000,000", "٣٤٥", "①②", "a1b2c3", "____", "----", "====", "....", "!!!???",
    "a" * 120, "aB" * 60, "<0x41>", "<0x0A><0xFF>", "##ing", "Ġthe", "ĊĊ", "[UNK]", "</w>", "don't", "DON'T", "'s 't",
    "I'm", "l'été", "www.example.com/path?x=1&y=2#z", "me@example.org", "C:\\Users\\x\\n", "🙂" * 5, "é" * 9, "é" * 9,
    "\U0010ffff", "\ue000\uf8ff", "\U000e0001\U000e007f", "\u202eabc\u202c",
    "ß ẞ ſ K Å İ ı ǅ", "ﷺ", "ؠ\u0651\u064e",
    "क्षि", "เก็บน้ำ", "한\u1100\u1161", "中文 English 混合text", "x" + " " * 40 + "y", "x" + "\n" * 20 + "y",
    "x" + "\t" * 12 + "y", " " * 100, "\n" * 33, " \n \n \n", "a\u0300\u0301\u0302\u0303b",
    "🏴\U000e0067\U000e0062\U000e007f",
]  # fmt: skip


def texts(control: Sequence[str], count: int = 200) -> list[str]:
    """Varied texts, some with names of special tokens."""
    chance = random.Random(30)
    sentences, code = _SENTENCES.splitlines(), _CODE.split("\n\n")
    words = sorted({*_SENTENCES.split(), *_CODE.split(" ")})
    spaces = [" ", " ", " ", "  ", "    ", "\n", "\n\n", "\t", "\r\n", " \n ", "", "", "   "]
    made = [*_ODD, *sentences, *code, _SENTENCES, _CODE]
    made += [f"{chance.choice(spaces)}{line}{chance.choice(spaces)}" for line in (*sentences, *code)]
    names = [*control]
    chance.shuffle(names)
    for name in names[:25]:
        before, after = (
            chance.choice(["", "a", "a ", "a\n", "  "]),
            chance.choice(["", "b", " b", "\n b", "\n\n", "  "]),
        )
        made.append(f"{before}{name}{after}{chance.choice(names)}{chance.choice(spaces)}{chance.choice(words)}")
    while len(made) < count:
        parts = [
            chance.choice([*words, *sentences[:3]]) + chance.choice(spaces) for _ in range(chance.randrange(1, 12))
        ]
        made.append("".join(parts))
    return made[:count]


class Reference:
    """A tokenizer that others use: ids of a text (None: it does not do that), and a text of ids."""

    def __init__(
        self, encode: Callable[[str, bool, bool], list[int] | None], decode: Callable[[list[int]], str]
    ) -> None:
        self.encode, self.decode = encode, decode


def llama_cpp_reference(path: Path) -> Reference:
    """By llama.cpp; a text comes back without control tokens, and without the space that may be put before it."""
    import llama_cpp

    llama_cpp.llama_log_set(_SILENT, ctypes.c_void_p(0))
    options = llama_cpp.llama_model_default_params()
    options.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
    if not model:
        raise ValueError("llama.cpp does not load it")
    vocab = llama_cpp.llama_model_get_vocab(model)

    def encode(text: str, special: bool, around: bool) -> list[int]:
        data = text.encode()
        size = len(data) * 2 + 16
        ids = (llama_cpp.llama_token * size)()
        count = llama_cpp.llama_tokenize(vocab, data, len(data), ids, size, around, special)
        return list(ids[:count])

    def decode(ids: list[int]) -> str:
        size = 64 * len(ids) + 1024
        array, room = (llama_cpp.llama_token * len(ids))(*ids), ctypes.create_string_buffer(size)
        length = llama_cpp.llama_detokenize(vocab, array, len(ids), room, size, False, False)
        return ctypes.string_at(room, length).decode("utf-8", "replace")

    return Reference(encode, decode)


def library_reference(path: Path) -> Reference:
    """By the `tokenizers` library, with the BOS if tokenizer_config.json asks for it."""
    import tokenizers

    library = tokenizers.Tokenizer.from_file(str(path))
    library.no_truncation()
    library.no_padding()
    config = path.with_name("tokenizer_config.json")
    settings = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    bos = settings.get("bos_token")
    bos_id = library.token_to_id(bos["content"] if isinstance(bos, dict) else bos) if bos else None

    def encode(text: str, special: bool, around: bool) -> list[int]:
        library.encode_special_tokens = not special
        ids = list(library.encode(text, add_special_tokens=around).ids)
        if around and bos_id is not None and settings.get("add_bos_token") and not added_by_itself:
            ids = [bos_id, *ids]
        return ids

    added_by_itself = bos_id in library.encode("a").ids[:1]
    return Reference(encode, lambda ids: library.decode(ids, skip_special_tokens=True))


def sentencepiece_reference(path: Path) -> Reference:
    """By sentencepiece, which never reads names of control tokens; BOS and EOS are a choice of its caller."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    has_bos = model.bos_id() >= 0

    def encode(text: str, special: bool, around: bool) -> list[int] | None:
        return None if special and not around else list(model.encode(text, add_bos=around and has_bos))

    return Reference(encode, model.decode)


def transformers_reference(path: Path) -> Reference:
    """By transformers."""
    from transformers import AutoTokenizer

    whole = AutoTokenizer.from_pretrained(str(path))

    def encode(text: str, special: bool, around: bool) -> list[int]:
        return list(whole.encode(text, add_special_tokens=around, split_special_tokens=not special))

    return Reference(
        encode, lambda ids: whole.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    )


def main() -> int:
    """Prints a line for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--show", type=int, default=0, metavar="N")
    args = parser.parse_args()
    print(f"{'file':40}", *(f"{column:>10}" for column in _COLUMNS), "  .out")
    whole = accepted = 0
    for path in sorted({found for given in args.paths for found in _find(given)}):
        name = str(path)[-40:]
        try:
            tokenizer = load_tokenizer(path)
        except MlxrError as error:
            print(f"{name:40} refused: {error}")
            continue
        try:
            reference = _reference(path)
        except Exception as error:  # the reference's own
            print(f"{name:40} no reference: {type(error).__name__}: {error!s:.90}")
            continue
        sample = texts(sorted(tokenizer.control_tokens))
        counts, differences = _compare(tokenizer, reference, sample)
        listed = _listed(path, tokenizer)
        accepted += 1
        whole += all(count == len(sample) for count in counts)
        print(f"{name:40}", *(f"{f'{count}/{len(sample)}':>10}" for count in counts), f"  {listed}", flush=True)
        for column in _COLUMNS:
            for text, expected, got in differences[column][: args.show]:
                print(f"    {column}: {text!a:.90}\n        expected {expected!a:.400}\n        got      {got!a:.400}")
    print(f"{whole} of {accepted} give the reference's ids of all texts")
    return 0


def _find(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    if any((path / name).is_file() for name in _FILES):
        yield path
    else:
        for inner in sorted(path.iterdir()):
            if inner.is_dir():
                yield from _find(inner)
            elif inner.suffix == ".gguf" and has_vocabulary(gguf_metadata(inner)):
                yield inner


def _reference(path: Path) -> Reference:
    if path.suffix == ".gguf":
        return llama_cpp_reference(path)
    document = path / "tokenizer.json" if path.is_dir() else path
    if document.suffix == ".json" and document.is_file():
        return library_reference(document)
    if path.is_dir() and not (path / "tokenizer_config.json").is_file():
        path = next((path / name for name in _FILES if (path / name).is_file()), path)
    return sentencepiece_reference(path) if path.suffix == ".model" else transformers_reference(path)


def _compare(
    tokenizer: Tokenizer, reference: Reference, sample: Sequence[str]
) -> tuple[list[int], dict[str, list[tuple[str, Any, Any]]]]:
    counts = dict.fromkeys(_COLUMNS, 0)
    differences: dict[str, list[tuple[str, Any, Any]]] = {column: [] for column in _COLUMNS}
    parses = reference.encode("", True, False) is not None
    for text in sample:
        plain = tokenizer.encode(text, add_special=False)
        decoder = tokenizer.stream_decoder()
        decoded = tokenizer.decode(plain)
        back = reference.decode(plain)
        if decoded.lstrip(" ") == back.lstrip(" "):
            back = decoded
        pairs = {
            "plain": (reference.encode(text, False, False), plain),
            "special": (reference.encode(text, parses, False), tokenizer.encode(text, False, parses)),
            "around": (reference.encode(text, parses, True), tokenizer.encode(text, True, parses)),
            "round trip": (back if decoded != text else text, decoded),
            "streamed": (decoded, "".join([*map(decoder.push, plain), decoder.flush()])),
        }
        for column, (expected, got) in pairs.items():
            counts[column] += expected == got
            if expected != got:
                differences[column].append((text, expected, got))
    return [*counts.values()], differences


def _listed(path: Path, tokenizer: Tokenizer) -> str:
    """How many texts of a .inp file have the ids of the .out file."""
    inputs, outputs = (path.with_name(path.name + ending) for ending in (".inp", ".out"))
    if not (inputs.is_file() and outputs.is_file()):
        return ""
    given = inputs.read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    rows = [[int(number) for number in line.split()] for line in outputs.read_text().splitlines()]
    right = sum(tokenizer.encode(text, add_special=False) == ids for text, ids in zip(given, rows, strict=False))
    return f"{right}/{len(rows)}"


if __name__ == "__main__":
    sys.exit(main())
