"""Small vocabularies of GGUF files, of the kinds and with the oddities of published ones; and texts to try them on."""

from collections.abc import Mapping, Sequence
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_SPACE = "\u2581"
_WORDS = ("ab", "abc", "the", "he", "her", "ere", "is", "in", "ing", "12", "ü", "üb", "日", "日本")
TEXTS = (
    *("", " ", "  ", "a", " a", "a ", "ab  abc   the", "\n\nthe\n", "there is 12 in", "über 日本 is", "ééé ü ü"),
    *(
        "<unk>",
        "a<unk>b",
        "</s>",
        "a</s> b",
        "<s> the",
        "<|user|>\n the<|end|>  \n is",
        "the<tool> is<tool>",
        "x\n\n\ny",
    ),
    *(
        "     a",
        "<mask>",
        "the <mask> is",
        "[CLS] the [SEP]",
        "HERE Is İt",
        "a-b, c!",
        "a\tb\u00a0c",
        "<0x41>",
        "🎉🎉 e",
    ),
)


def _gguf(kind: str, columns: Mapping[str, Sequence[Any]], **more: Any) -> dict[str, Any]:
    named = {f"tokenizer.ggml.{key}": [*value] for key, value in columns.items()}
    return {"tokenizer.ggml.model": kind, **named, **{key.replace("__", "."): value for key, value in more.items()}}


def _pieces(
    control: Sequence[tuple[str, int]], more: Sequence[tuple[str, int]] = (), num_bytes: int = 256
) -> dict[str, Sequence[Any]]:
    """Control tokens, bytes, and pieces of which all merges have pieces."""
    letters = sorted({*"".join(_WORDS), *"abcdefghijklmnopqrstuvwxyz,.!-\n", _SPACE}.difference(_WORDS))
    words = [*_WORDS, "er", "re", "th", "ng", *(f"{_SPACE}{word}" for word in ("t", "th", "the", "i", "is", "a", "ab"))]
    rows = [*control, *((f"<0x{byte:02X}>", BYTE) for byte in range(num_bytes)), *((word, NORMAL) for word in words)]
    rows += [*((letter, NORMAL) for letter in letters), *more]
    rank = {word: float(-index) for index, word in enumerate([*words, *letters])}
    return {
        "tokens": [token for token, _ in rows],
        "token_type": [kind for _, kind in rows],
        "scores": [rank.get(token, -1000.0 if kind == USER_DEFINED else 0.0) for token, kind in rows],
    }


def _bpe(letters: Sequence[str], merges: Sequence[str], more: Sequence[tuple[str, int]]) -> dict[str, Sequence[Any]]:
    made = dict.fromkeys([*letters, *(merge.replace(" ", "") for merge in merges)])
    return {
        "tokens": [*made, *(token for token, _ in more)],
        "token_type": [*[NORMAL] * len(made), *(kind for _, kind in more)],
        "merges": merges,
    }


def made_vocabularies() -> dict[str, dict[str, Any]]:
    """The metadata by a name of the vocabulary."""
    usual = (("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL))
    added = (("<|user|>", USER_DEFINED), ("<|end|>", CONTROL), ("<tool>", USER_DEFINED))
    merges = ["t h", "th e", "h e", "i s", "i n", "1 2", "a b", "ab c", "Ġ i", "Ġi s", "a q", "q z"]
    letters = [*"abcdefghilnorstuxy12,.!<>|-/", "Ġ", "Ċ", "Ã"]
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(f"{_SPACE}{w}" for w in ("the", "here", "is", "a", "b", ",")),
    ]
    words += [f"{_SPACE}{w}" for w in ("über", "uber", "!", "-", "it", "日", "本")] + ["re", "a", "b", "ing", "x", "ab"]
    raw = [
        *"abcdefghilnorstux12,.!-",
        _SPACE,
        "\n",
        "\n\n",
        "日",
        "本",
        "ü",
        *(f"<0x{byte:02X}>" for byte in range(256)),
    ]
    spaced = [
        "t h",
        "th e",
        "i s",
        f"{_SPACE} t",
        f"{_SPACE}t he",
        f"{_SPACE} is",
        "h e",
        "日 本",
        f"{_SPACE} {_SPACE}",
        "\n \n",
    ]
    gemma = _bpe(raw, spaced, [("<unk>", UNKNOWN), ("<s>", CONTROL), ("<tool>", USER_DEFINED)])
    return {
        "llama": _gguf("llama", _pieces(usual)),
        "unknown is control": _gguf(
            "llama",
            _pieces((("<pad>", CONTROL), ("<s>", CONTROL), ("</s>", CONTROL), ("<unk>", CONTROL)), added),
            tokenizer__ggml__unknown_token_id=3,
        ),
        "runs of spaces": _gguf(
            "llama",
            _pieces(usual, (("  ", USER_DEFINED), ("   ", USER_DEFINED), ("\n\n", USER_DEFINED), *added)),
            tokenizer__ggml__add_space_prefix=False,
        ),
        "phi-3": _gguf(
            "llama",
            _pieces(
                (("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", NORMAL)),
                (*added, ("<|endoftext|>", CONTROL), ("<|p1|>", UNKNOWN), ("[PAD9]", UNUSED)),
            ),
            general__name="Phi3 mini",
        ),
        "t5": _gguf(
            "t5",
            _pieces((("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", UNKNOWN)), (("<mask>", CONTROL), *added), 0),
            tokenizer__ggml__add_space_prefix=True,
            tokenizer__ggml__remove_extra_whitespaces=True,
        ),
        "plamo2": _gguf("plamo2", _pieces(usual, added)),
        "bytes without tokens": _gguf("gpt2", _bpe(letters, merges, added), tokenizer__ggml__pre="smollm"),
        "bert": _gguf(
            "bert",
            {"tokens": words, "token_type": [CONTROL] * 5 + [NORMAL] * (len(words) - 5)},
            tokenizer__ggml__cls_token_id=2,
            tokenizer__ggml__bos_token_id=2,
            tokenizer__ggml__seperator_token_id=3,
            tokenizer__ggml__unknown_token_id=1,
        ),
        "gemma4": _gguf("gemma4", gemma, tokenizer__ggml__bos_token_id=len(gemma["tokens"]) - 2),
    }
