"""A folder's tokenizer as the entries of GGUF metadata: tokens, scores or merges, kinds, special tokens, chat template.

It is read again, and must give the same ids for some texts: else the folder is refused.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import TokenizerError
from mlxr.quantise.gguf_architecture import Fact, Facts
from mlxr.runtime.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer
from mlxr.runtime.tokenizer.model_proto import piece_kinds
from mlxr.runtime.tokenizer.pre_tokenizers import PRE_TOKENIZERS, Alphabet
from mlxr.runtime.tokenizer.template_files import read_templates
from mlxr.runtime.tokenizer.tokenizer import Tokenizer

_PREFIX = file_keys.TOKENIZER
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ADDED_SCORE = -1000.0
_MOST_NAMES = 50
SAMPLES = (
    "Don't you think I'LL have seen what we've done by 12:45? It costs $1,234.56, or 7.5 % more.",
    " Älter wird größer: Straße, naïve façade, señor, œuvre, Žluťoučký kůň, İstanbul, ﬁne e\u0301 A\u030a.",
    "Привет, мир! Ελληνικά. 你好，世界。「東京」で3回。안녕하세요. مرحبا ١٢٣. שלום. नमस्ते दुनिया। สวัสดี.",
    "🎉👩‍👩‍👧‍👦🇩🇪 ☃ → ∑ ½ ² Ⅷ € … “quotes” — dash\u00a0space\u3000wide\u200bzero\n\n\n  x",
    "def fib(n: int) -> int:\n    return n if n < 2 else fib(n - 1)\n\tfor (i = 0; ++i) { a[i] += 0x1F; }\r\n",
    "[INST] x [/INST] user\nhi 1234567 -- ",
)


class _Vocabulary(NamedTuple):
    """Tokens in the order of their ids, and what there is of each."""

    model: str
    pre: str
    texts: list[str]
    kinds: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None
    adds_space: bool | None = None


def vocabulary_facts(folder: Path, vocab_size: int) -> Facts:
    """The entries of a folder's tokenizer, for a model with so many rows of embeddings.

    Raises:
        TokenizerError: there is none, or of a kind that cannot be converted.
    """
    tokenizer = load_tokenizer(folder)
    described = _json(folder / "tokenizer.json") if (folder / "tokenizer.json").is_file() else {}
    has_pieces = (folder / "tokenizer.model").is_file()
    found = _pieces(folder, described) if has_pieces else _of_json(folder, described)
    for column in (found.texts, found.kinds, found.scores):  # tokens without a row of embeddings
        if column is not None:
            del column[vocab_size:]
    while len(found.texts) < vocab_size:
        found.texts.append(f"[PAD{len(found.texts)}]")
        found.kinds.append(UNUSED)
        if found.scores is not None:
            found.scores.append(_ADDED_SCORE)
    facts = {"model": Fact(found.model), "pre": Fact(found.pre), "tokens": Fact(found.texts)}
    if found.scores is not None:
        facts["scores"] = Fact(found.scores, "f32")
    facts["token_type"] = Fact(found.kinds, "i32")
    if found.merges is not None:
        facts["merges"] = Fact(found.merges)
    facts |= _special(folder, tokenizer, found)
    every = {f"{_PREFIX}{key}": fact for key, fact in facts.items()}
    if (templates := read_templates(folder)) is not None:
        every[file_keys.CHAT_TEMPLATE] = Fact(templates.text)
    _check(folder, tokenizer, every)
    return every


def _special(folder: Path, tokenizer: Tokenizer, found: _Vocabulary) -> Facts:
    facts: Facts = {}
    if tokenizer.bos_id is not None:
        facts["bos_token_id"] = Fact(tokenizer.bos_id, "u32")
    if tokenizer.eos_id is not None:
        facts["eos_token_id"] = Fact(tokenizer.eos_id, "u32")
    if UNKNOWN in found.kinds:
        facts["unknown_token_id"] = Fact(found.kinds.index(UNKNOWN), "u32")
    config = _json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    padding = config.get("pad_token")
    padding = padding.get("content") if isinstance(padding, dict) else padding
    if isinstance(padding, str) and padding in found.texts:
        facts["padding_token_id"] = Fact(found.texts.index(padding), "u32")
    added = tokenizer.encode("")
    facts["add_bos_token"] = Fact(tokenizer.adds_bos, "bool")
    facts["add_eos_token"] = Fact(bool(added) and added[-1] == tokenizer.eos_id != tokenizer.bos_id, "bool")
    if found.adds_space is not None:
        facts["add_space_prefix"] = Fact(found.adds_space, "bool")
    return facts


def _json(path: Path) -> dict[str, Any]:
    try:
        read: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path}: cannot be read: {error}") from error
    return read


def _added(described: Mapping[str, Any], folder: Path) -> Iterator[tuple[int, str, int]]:
    """Ids, texts and kinds of tokens that were added to a vocabulary."""
    listed: dict[int, tuple[str, bool]] = {}
    config = _json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    for token_id, token in config.get("added_tokens_decoder", {}).items():
        listed[int(token_id)] = token["content"], bool(token.get("special"))
    for token in described.get("added_tokens", ()):
        listed[token["id"]] = token["content"], bool(token.get("special"))
    for token_id, (text, special) in sorted(listed.items()):
        yield token_id, text, CONTROL if special else USER_DEFINED


def _pieces(folder: Path, described: Mapping[str, Any]) -> _Vocabulary:
    """Of tokenizer.model."""
    path = folder / "tokenizer.model"
    try:
        proto = path.read_bytes()
        model = sentencepiece.SentencePieceProcessor(model_proto=proto)
    except (OSError, RuntimeError) as error:
        raise TokenizerError(f"{path}: cannot be read: {error}") from error
    texts = [model.id_to_piece(i) for i in range(model.vocab_size())]
    scores = [model.get_score(i) for i in range(len(texts))]
    kinds = piece_kinds(proto)
    for token_id, text, kind in _added(described, folder):
        while len(texts) <= token_id:
            texts.append(f"[PAD{len(texts)}]")
            scores.append(_ADDED_SCORE)
            kinds.append(UNUSED)
        if kinds[token_id] in (UNKNOWN, BYTE) or (texts[token_id] == text and kinds[token_id] == CONTROL):
            continue
        texts[token_id], scores[token_id], kinds[token_id] = text.replace(_SPACE, " "), _ADDED_SCORE, kind
    adds_space = model.encode("x", out_type=str)[:1] == [f"{_SPACE}x"] or model.encode("x", out_type=str)[:1] == [
        _SPACE
    ]
    return _Vocabulary("llama", "default", texts, kinds, scores, None, adds_space)


def _of_json(folder: Path, described: Mapping[str, Any]) -> _Vocabulary:
    """Of tokenizer.json."""
    model = described.get("model", {})
    if model.get("type") != "BPE":
        reason = f"its tokenizer is {model['type']!r}" if "type" in model else "it has no tokenizer.json"
        raise TokenizerError(f"{folder}: {reason}; BPE and tokenizer.model can be converted to GGUF")
    size = 1 + max([*model["vocab"].values(), *(token["id"] for token in described.get("added_tokens", ()))])
    texts, kinds = [f"[PAD{i}]" for i in range(size)], [UNUSED] * size
    for text, token_id in model["vocab"].items():
        texts[token_id], kinds[token_id] = text, NORMAL
    in_bytes = _has_part(described.get("pre_tokenizer"), "ByteLevel")
    if not in_bytes:  # as sentencepiece has it
        for token_id, text in enumerate(texts):
            if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
                kinds[token_id] = BYTE
    for token_id, text, kind in _added(described, folder):
        if token_id < size:
            texts[token_id], kinds[token_id] = text, kind
    if not in_bytes:
        if model.get("unk_token") in texts:
            kinds[texts.index(model["unk_token"])] = UNKNOWN
        scores = [-float(token_id) for token_id in range(size)]
        return _Vocabulary("llama", "default", texts, kinds, scores, None, _prepends(described))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return _Vocabulary("gpt2", _pre(folder, described), texts, kinds, None, merges)


def _prepends(described: Mapping[str, Any]) -> bool:
    text = json.dumps([described.get("normalizer"), described.get("pre_tokenizer")])
    return '"Prepend"' in text or '"prepend_scheme": "first"' in text or '"prepend_scheme": "always"' in text


def _parts(section: Any) -> list[dict[str, Any]]:
    """The parts of a sequence of normalizers or pre-tokenizers."""
    if not isinstance(section, dict):
        return []
    inner: Sequence[Any] = section.get("pretokenizers") or section.get("normalizers") or ()
    return [part for each in inner for part in _parts(each)] if section.get("type") == "Sequence" else [section]


def _has_part(section: Any, kind: str) -> bool:
    return any(part.get("type") == kind for part in _parts(section))


def _pre(folder: Path, described: Mapping[str, Any]) -> str:
    """What llama.cpp calls the way in which text is split into words."""
    patterns = []
    for part in _parts(described.get("pre_tokenizer")):
        if part["type"] == "Split":
            pattern = part["pattern"]
            patterns.append(pattern.get("Regex", pattern.get("String")))
        elif part["type"] == "Digits":
            patterns.append(r"\p{N}" if part.get("individual_digits") else r"\p{N}+")
        elif part["type"] == "ByteLevel" and part.get("use_regex", True):
            patterns.append(_GPT2)
    ignores = bool(described["model"].get("ignore_merges"))
    composed = _has_part(described.get("normalizer"), "NFC")
    for name, known in PRE_TOKENIZERS.items():
        same = (known.patterns, known.ignore_merges, known.composed) == (tuple(patterns), ignores, composed)
        if same and known.alphabet is Alphabet.BYTES:
            return name
    raise TokenizerError(f"{folder}: splits text in a way that GGUF has no name for here: {patterns}")


def _check(folder: Path, tokenizer: Tokenizer, facts: Facts) -> None:
    """Checks that the entries mean the same tokenizer."""
    back = tokenizer_from_gguf({key: fact.value for key, fact in facts.items()}, f"{folder} as GGUF")
    kinds, texts = facts[f"{_PREFIX}token_type"].value, facts[f"{_PREFIX}tokens"].value
    named = [text for text, kind in zip(texts, kinds, strict=True) if kind in (CONTROL, USER_DEFINED)]
    if f"{_PREFIX}merges" not in facts:
        named = []  # sentencepiece and llama.cpp differ in the spaces after them, which no file can say
    for text in (*SAMPLES, *(f"a {name} b" for name in named[:_MOST_NAMES])):
        for special in (False, True):
            ids = [each.encode(text, parse_special=special) for each in (tokenizer, back)]
            if ids[0] != ids[1]:
                raise TokenizerError(
                    f"{folder}: its tokenizer cannot be converted to GGUF: {text[:40]!r} would become {ids[1][:12]}, "
                    f"and is {ids[0][:12]}"
                )
