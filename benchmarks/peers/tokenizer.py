"""A tokenizer for random models, as Llama's folders have it: users' engines make text of the tokens they generate."""

import json
from pathlib import Path

from peers.models import vocabulary

_NUM_SPECIAL = 3


def write_tokenizer(folder: Path, vocab: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json, with the same vocabulary as the GGUF files."""
    tokens = vocabulary(vocab)
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(index, tokens[index]) for index in range(_NUM_SPECIAL)],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": tokens[0],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [],
        },
    }
    names = dict(zip(("unk_token", "bos_token", "eos_token"), tokens, strict=False))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | names
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _special(index: int, content: str) -> dict[str, object]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, "special": True} | plain
