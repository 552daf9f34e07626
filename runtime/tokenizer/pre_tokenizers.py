"""How byte-level BPE vocabularies split text into words, by the names in GGUF files (`tokenizer.ggml.pre`).

A name stands for regular expressions. The first one splits the text into its matches and the parts between them; each
further one splits these parts again. The expressions are those of the models' own tokenizer.json, in the syntax of
Oniguruma, which the `tokenizers` library runs.

Source: the names are llama.cpp's (llama-vocab.cpp). Where it rewrites an expression for its own engine, this is the
original; if the original first composes characters, so does this.
"""

from dataclasses import dataclass
from enum import Enum

from mlxr.compiler.errors import TokenizerError

# fmt: off
_ANY_CASE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKED_WORD = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LINES = r"\s*[\r\n]+"
_SPACES = r"\s+(?!\S)|\s+"
_LOWER_WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER_WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_PATH_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_CASED_END = rf"{_PATH_SIGNS}|{_LINES}|{_SPACES}"
_HAN_KANA = r"[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK_WORD = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
_LATIN_GREEK_CYRILLIC = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ"
    "Ὗ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ"
    "Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
# fmt: on

_GPT2 = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _SPACES,)
_DIGITS_GPT2 = (r"\p{N}", *_GPT2)
_BY_THREE = ("|".join((_ANY_CASE, _WORD, r"\p{N}{1,3}", _SIGNS, _LINES, _SPACES)),)
_BY_DIGIT = ("|".join((_ANY_CASE, _WORD, r"\p{N}", _SIGNS, _LINES, _SPACES)),)
_CASED_BY_THREE = ("|".join((rf"{_LOWER_WORD}{_ANY_CASE}?", rf"{_UPPER_WORD}{_ANY_CASE}?", r"\p{N}{1,3}", _CASED_END)),)
_LINES_APART = (r"[^\n]+|[\n]+",)
_NOT_HAN = r"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]{}[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]{}"
_CASED_NOT_HAN = "|".join(rf"[^\r\n\p{{L}}\p{{N}}]?{_NOT_HAN.format(*counts)}{_ANY_CASE}?" for counts in ("*+", "+*"))
_NO_SENTENCE_SIGNS = r" ?[^(\s|.,!?…。，、।۔،)]+"


class Alphabet(Enum):
    """What the letters of tokens are."""

    BYTES = "bytes"
    """Each letter stands for a byte of the text, as in GPT-2."""
    CHARACTERS = "characters"
    """Each is a character of the text, and U+2581 a space; `<0x41>` is a byte."""
    WORDS = "words"
    """Likewise, but white space only separates words."""


@dataclass(frozen=True)
class PreTokenizer:
    """One way to split text.

    Attributes:
        patterns: regular expressions, applied in order.
        ignore_merges: whether a word in the vocabulary becomes its token without any merges.
        add_bos: whether the BOS is added to a text, if the file does not say.
        composed: whether text is composed (Unicode form NFC) first.
        always_bos: whether the BOS is added even if the file says that it is not.
        alphabet: what the letters of tokens are.
        lowercase: whether letters become small first.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    composed: bool = False
    always_bos: bool = False
    alphabet: Alphabet = Alphabet.BYTES
    lowercase: bool = False


PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", *_GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "deepseek-llm": PreTokenizer(
        (
            "[\r\n]",
            rf"\s?[{_LATIN_GREEK_CYRILLIC}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            r"[一-龥ࠀ-一가-퟿]+",
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    "spark2_5": PreTokenizer(
        (r"\p{N}{1,3}", _HAN_KANA, rf"{_DEEPSEEK_WORD}|[\r\n]|{_SPACES}", r"\p{N}"),
    ),
    "youtu": PreTokenizer(
        (
            rf"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|{_HAN_KANA}",
            "|".join((rf"{_LOWER_WORD}{_ANY_CASE}?", rf"{_UPPER_WORD}{_ANY_CASE}?", r"\p{N}", _CASED_END)),
        ),
        ignore_merges=True,
    ),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", *_GPT2, "[0-9][0-9][0-9]")),
    "qwen35": PreTokenizer(
        ("|".join((_ANY_CASE, _MARKED_WORD, r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _LINES, _SPACES)),),
    ),
    "jais-2": PreTokenizer(
        (
            "|".join((_ANY_CASE, _WORD, r"\p{N}{1,3}", _SIGNS, _LINES))
            + "".join(rf"|\s{{{count}}}(?!\S)" for count in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
            + r"|\s{1}",
        )
    ),
    "viking": PreTokenizer((_NO_SENTENCE_SIGNS, r"\p{N}")),
    "tekken": PreTokenizer(
        ("|".join((_LOWER_WORD, _UPPER_WORD, r"\p{N}", _CASED_END)),), ignore_merges=True, add_bos=True
    ),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            "([\\t\\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            *_GPT2,
        ),
        add_bos=True,
    ),
    "superbpe": PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "seed-coder": PreTokenizer(
        ("|".join((_ANY_CASE, _WORD, r"\p{N}{1}", r" ?[^\s\p{L}\p{N}\r\n]+", _LINES, _SPACES)),)
    ),
    "ufakzeka": PreTokenizer(("|".join((_WORD, r"\p{N}", _SIGNS, _LINES, _SPACES)),)),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", *_BY_DIGIT)),
    "exaone-moe": PreTokenizer(
        (
            "|".join(
                (
                    _ANY_CASE,
                    r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                    r"\p{N}",
                    r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
                    r"\s*[\r\n]",
                    _SPACES,
                )
            ),
        )
    ),
    "kimi-k2": PreTokenizer(
        ("|".join((r"\p{Han}+", _CASED_NOT_HAN, r"\p{N}{1,3}", _SIGNS, _LINES, _SPACES)),),
    ),
    "afmoe": PreTokenizer(
        (
            r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
            "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
            rf"{_DEEPSEEK_WORD}[\r\n]*|{_LINES}|{_SPACES}",
        )
    ),
    "minicpm5": PreTokenizer(
        (r"\p{N}{1,3}", "|".join((_ANY_CASE, _WORD, r"\p{N}+", _SIGNS, _LINES, _SPACES))), ignore_merges=True
    ),
}
for _pre_tokenizer, _names in (
    (
        PreTokenizer(_BY_THREE, True, True),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    ),
    (PreTokenizer(_BY_THREE), "dbrx smaug-bpe chatglm-bpe"),
    (PreTokenizer(_BY_THREE, ignore_merges=True), "glm4 glm5"),
    (PreTokenizer(_BY_DIGIT, composed=True), "qwen2 deepseek-r1-qwen f2llmv2"),
    (PreTokenizer(_BY_DIGIT), "kormo megrez stablelm2 hunyuan solar-open grok-2"),
    (
        PreTokenizer(_GPT2),
        "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 jais trillion granite-docling jina-es jina-de jina-v2-es "
        "jina-v2-de jina-v1-en jina-v2-code roberta-bpe",
    ),
    (PreTokenizer(_GPT2, composed=True), "mpt olmo modern-bert"),
    (PreTokenizer(_DIGITS_GPT2), "starcoder refact smollm codeshell exaone minerva-7b mellum2"),
    (PreTokenizer(_DIGITS_GPT2, composed=True), "command-r"),
    (PreTokenizer(_CASED_BY_THREE, ignore_merges=True), "granite-embed-multi-97m"),
    (
        PreTokenizer(_LINES_APART, add_bos=True, always_bos=True, alphabet=Alphabet.CHARACTERS),
        "gemma4 granite-embed-multi-311m",
    ),
    (PreTokenizer(_LINES_APART, alphabet=Alphabet.CHARACTERS), "sarvam-moe"),
    (PreTokenizer((), alphabet=Alphabet.WORDS), "whitespace"),
    (PreTokenizer((_NO_SENTENCE_SIGNS,)), "poro-chat bloom gpt3-finnish"),
    (PreTokenizer(_CASED_BY_THREE), "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", *_CASED_BY_THREE)), "tiny_aya cohere2moe"),
    (
        PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, rf"{_DEEPSEEK_WORD}[\r\n]*|{_LINES}|{_SPACES}")),
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    ),
    (
        PreTokenizer(
            (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|" + _SPACES,)
        ),
        "bailingmoe bailingmoe2 llada-moe",
    ),
):
    PRE_TOKENIZERS |= dict.fromkeys(_names.split(), _pre_tokenizer)


def pre_tokenizer(name: str, source: str) -> PreTokenizer:
    """The pre-tokenizer of a name.

    Raises:
        TokenizerError: the name is not known; another way to split text would give other tokens.
    """
    known = PRE_TOKENIZERS.get(name)
    if known is None:
        raise TokenizerError(
            f"{source}: its vocabulary splits text as {name!r:.60} (tokenizer.ggml.pre), which is not supported; "
            f"supported are {', '.join(sorted(PRE_TOKENIZERS))}. With the model's own tokenizer.json it works: name "
            "its folder with --tokenizer"
        )
    return known
