"""Small tokenizers, trained by the tests and stored as in models' files; and text to try them on."""

import functools
import io
import json
import random
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from mlxr_tests.storyteller import VALID

# The patterns in the tokenizer.json of these families, independent of MLXR's own table.
WORDS = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    "gpt-4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = "<think>"

LANGUAGES = """\
Don't you think I'LL have seen what we've done by 12:45? It costs $1,234.56, or 7.5 % more.
Älter wird größer: Straße, naïve façade, señor, œuvre, Žluťoučký kůň, İstanbul, ﬁne e\u0301 A\u030a.
Привет, мир! Как дела? Ελληνικά γράμματα. ქართული ენა. Հայերեն.
你好，世界。今天天气很好！「東京」で3回カタカナを。안녕하세요 세계. 한국어 문장.
مرحبا بالعالم، ١٢٣ كتب. שלום עולם. नमस्ते दुनिया, हिन्दी में। สวัสดีชาวโลก. বাংলা ভাষা।
🎉👩‍👩‍👧‍👦🇩🇪👍🏽 ☃ → ∑ ½ ² Ⅷ € £ © ™ … “quotes” ‘single’ — dash\u00a0space\u3000wide\u200bzero
def fib(n: int) -> int:\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n
\tfor (size_t i = 0; i < 10; ++i) { a[i] += 0x1F; }  /* comment */\r\n\r\n#include <stdio.h>
<|im_start|>user\nhi<|im_end|> <s>[INST] x [/INST]</s> <think>no</think> <0x41> \ufffd \x00\x7f
"""


@functools.cache
def held_out_text() -> str:
    """English from storyteller's held-out text, and a little of every other script."""
    return VALID.read_text()[:150_000] + LANGUAGES * 20


def random_texts(count: int, seed: int = 0) -> list[str]:
    """Strings of words, letters, signs, spaces and arbitrary characters; bytes that are not UTF-8 become U+FFFD."""
    chance = random.Random(seed)
    words = sorted(set(LANGUAGES.split()) | {" ", "  ", "    ", "\n", "\n\n", "\r\n", "\t", " \n ", "'s", "'RE", "123"})
    letters = sorted(set(LANGUAGES))
    characters = [*range(0xD800), *range(0xE000, 0x110000, 97)]
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(chance.randrange(1, 16)):
            kind = chance.random()
            if kind < 0.5:
                parts.append(chance.choice(words))
            elif kind < 0.85:
                parts.append(chance.choice(letters))
            elif kind < 0.95:
                parts.append(chance.randbytes(chance.randrange(1, 6)).decode("utf-8", "replace"))
            else:
                parts.append(chr(chance.choice(characters)))
            parts.append(chance.choice(["", "", " "]))
        texts.append("".join(parts))
    return texts


def byte_level(words: str, text: str | None = None, **options: Any) -> Tokenizer:
    """A byte-level BPE tokenizer of 1,500 tokens, trained on a text or `held_out_text`, with control tokens."""
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[*CONTROL],
        show_progress=False,
    )
    tokenizer.train_from_iterator([text or held_out_text()], trainer)
    tokenizer.add_tokens([AddedToken(USER_DEFINED, normalized=False)])
    return tokenizer


def single_bytes(*names: str, text_names: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer with a token for each byte, and then one for each name: of a control token, or of text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in text_names])
    return tokenizer


def metaspace() -> Tokenizer:
    """A BPE tokenizer like that of Llama 2: spaces as U+2581, a space put before the text, byte fallback."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<unk>", "<s>", "</s>", *byte_tokens], show_progress=False, limit_alphabet=90
    )
    lines = [line for line in held_out_text()[:60_000].splitlines() if line]
    tokenizer.train_from_iterator(lines, trainer)
    content = json.loads(tokenizer.to_str())
    # The trainer makes byte tokens special; in the models they are text.
    content["added_tokens"] = [t for t in content["added_tokens"] if t["content"] in ("<unk>", "<s>", "</s>")]
    return Tokenizer.from_str(json.dumps(content))


def metadata_of(tokenizer: Tokenizer, pre: str, **more: Any) -> dict[str, Any]:
    """The metadata of a GGUF file for a byte-level BPE tokenizer, as llama.cpp's converter writes it."""
    content = json.loads(tokenizer.to_str())
    added = {token["id"]: token for token in content["added_tokens"]}
    vocabulary = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
    kinds = [(3 if added[i]["special"] else 4) if i in added else 1 for i in range(len(vocabulary))]
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in content["model"]["merges"]]
    values = {
        "model": "gpt2",
        "pre": pre,
        "tokens": [vocabulary[token_id] for token_id in range(len(vocabulary))],
        "token_type": kinds,
        "merges": merges,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (values | more).items()}


def sentencepiece_model(**options: Any) -> bytes:
    """A sentencepiece model of 1,200 pieces with byte fallback, trained on `held_out_text`."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(held_out_text()[:60_000].splitlines()),
        model_writer=model,
        **{
            "vocab_size": 1200,
            "model_type": "bpe",
            "byte_fallback": True,
            "character_coverage": 0.999,
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "split_digits": True,
            "allow_whitespace_only_pieces": True,
            "minloglevel": 2,
        }
        | options,
    )
    return model.getvalue()


def metadata_of_pieces(model: bytes, **more: Any) -> dict[str, Any]:
    """The metadata of a GGUF file for a sentencepiece model, as llama.cpp's converter writes it."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    size = processor.vocab_size()
    tests = ((2, processor.is_unknown), (3, processor.is_control), (6, processor.is_byte), (5, processor.is_unused))
    kinds = [next((kind for kind, test in tests if test(i)), 1) for i in range(size)]
    values = {
        "model": "llama",
        "tokens": [processor.id_to_piece(i) for i in range(size)],
        "scores": [processor.get_score(i) for i in range(size)],
        "token_type": kinds,
        "bos_token_id": processor.bos_id(),
        "eos_token_id": processor.eos_id(),
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (values | more).items()}


def write_gguf(path: Path, metadata: dict[str, Any]) -> Path:
    """Writes a GGUF file of a model without tensors, which llama.cpp opens for its vocabulary alone."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    for name in ("context_length", "embedding_length", "block_count", "feed_forward_length", "head_count"):
        getattr(writer, f"add_{name}")(32)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(metadata["tokenizer.ggml.tokens"]))
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def composed(texts: Sequence[str]) -> list[str]:
    """The texts in Unicode form NFC."""
    return [unicodedata.normalize("NFC", text) for text in texts]
