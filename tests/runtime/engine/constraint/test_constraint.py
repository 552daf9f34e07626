"""Answers chosen at random among allowed tokens follow their grammar and end, with tokenizers of each kind."""

import functools
import itertools
import json
import random
import re

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.constraint import Constraint, ConstraintCompiler
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer
from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer
from mlxr.runtime.tokenizer.sentencepiece_tokenizer import SentencepieceTokenizer
from mlxr.runtime.tokenizer.tokenizer import SpecialTokens, Tokenizer
from mlxr_tests.constrained import bytes_of, random_answer, spelled_by, tokens_of
from mlxr_tests.few import examples
from mlxr_tests.storyteller import ROOT
from mlxr_tests.vocabularies import CONTROL, WORDS, byte_level, metadata_of, metaspace, sentencepiece_model

MORE = 37
"""Logits beyond the vocabulary of the tokenizer."""
KINDS = ("storyteller", "byte-level", "gguf", "metaspace", "unigram")


@functools.cache
def tokenizer_of(kind: str) -> Tokenizer:
    if kind == "storyteller":
        return load_tokenizer(ROOT / "models/storyteller/tokenizer.model")
    if kind == "byte-level":  # two tokens end an answer
        return LibraryTokenizer(byte_level(WORDS["gpt-2"]), kind, SpecialTokens(0, 2, {0: kind}))
    if kind == "gguf":  # which normalises text
        return tokenizer_from_gguf(metadata_of(byte_level(WORDS["qwen2"]), "qwen2"), kind)
    if kind == "metaspace":
        return LibraryTokenizer(metaspace(), kind, SpecialTokens(1, 2))
    return SentencepieceTokenizer(sentencepiece_model(model_type="unigram"), kind)


@functools.cache
def compiler_of(kind: str) -> ConstraintCompiler:
    tokenizer = tokenizer_of(kind)
    return ConstraintCompiler(tokenizer, tokenizer.vocab_size + MORE, tokenizer.eos_ids)


def constraint_of(kind: str, **options: object) -> Constraint:
    constraint = compiler_of(kind).compile(Sampling(**options))
    assert constraint is not None
    return constraint


def answer_of(kind: str, seed: int, **options: object) -> str:
    tokenizer = tokenizer_of(kind)

    def look(answer: list[int], allowed: list[int]) -> None:
        assert max(allowed) < tokenizer.vocab_size
        assert not [token for token in allowed if tokenizer.is_control(token) and token not in tokenizer.eos_ids]
        ends = [token for token in allowed if token in tokenizer.eos_ids]
        assert len(ends) in (0, len(tokenizer.eos_ids)), "all of them or none"

    answer = random_answer(constraint_of(kind, **options), tokenizer, seed, look=look)
    return bytes_of(tokenizer, answer).decode("utf-8")


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "born": {"type": "string", "format": "date"},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
        "tags": {"type": "array", "items": {"enum": ["red", "blue", 7, None]}, "minItems": 1, "maxItems": 3},
        "size": {"anyOf": [{"type": "boolean"}, {"type": "number", "exclusiveMinimum": -2, "maximum": 3}]},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/step"}]},
    },
    "required": ["name", "age", "born", "tags"],
    "additionalProperties": False,
    "$defs": {"step": {"type": "object", "properties": {'é"\n': {"const": "☃ \\"}}, "required": ['é"\n']}},
}
PERSON["$defs"]["step"]["additionalProperties"] = False


@pytest.mark.parametrize("kind", KINDS)
def test_json_follows_its_schema(kind: str) -> None:
    for seed in range(12):
        schema = PERSON if seed % 2 else json.dumps(PERSON)
        answer = json.loads(answer_of(kind, seed, json_schema=schema))
        jsonschema.validate(answer, PERSON, format_checker=jsonschema.FormatChecker())


def test_any_json_parses_and_white_space_has_an_end() -> None:
    for seed in range(40):
        text = answer_of("storyteller", seed, json_schema="true" if seed % 2 else True)
        json.loads(text)
        assert not re.search(r"[ \t]{21}|\n{3}|^\s|\s$", re.sub(r'"(\\.|[^"\\])*"', "", text))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "pattern", [r"[a-d]{2,5}(, [0-9]+)?\.", r"(?i)once upon a (time|TREE)", "Größe 日本 (é|e\u0301)x{3}|<s>"]
)
def test_text_matches_its_regular_expression(kind: str, pattern: str) -> None:
    for seed in range(8):
        assert re.fullmatch(pattern, answer_of(kind, seed, regex=pattern))


@pytest.mark.parametrize(
    "grammar",
    [
        'start: sum\nsum: term (("+" | "-") term)*\nterm: NUMBER | "(" sum ")"\nNUMBER: /[1-9][0-9]{0,2}/\n',
        'root ::= sum # with "\nsum ::= term (("\\u002B" | "-") term)*\nterm ::= [1-9] [0-9]{0,2} | "(" sum ")"\n',
    ],
    ids=["lark", "gbnf"],
)
def test_text_is_a_sentence_of_its_grammar(grammar: str) -> None:
    values = set()
    for seed in range(30):
        text = answer_of("storyteller", seed, grammar=grammar)
        assert re.fullmatch(r"[-+()0-9]+", text)
        values.add(eval(text))  # digits, signs and brackets: what Python accepts, the grammar meant
    assert len(values) > 5


def test_a_dot_of_gbnf_is_any_character() -> None:
    seen = {answer_of("byte-level", seed, grammar='root ::= "." ["\\]\\U0001F600] .') for seed in range(150)}
    assert all(re.fullmatch(r'\.["\]\U0001F600].', text, re.DOTALL) for text in seen)
    assert any(text[2] in "\n\r" for text in seen) or len(seen) > 100


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@settings(max_examples=examples(60, 30), deadline=None)
@given(choices=st.lists(texts | st.text('ab"\\/.<s> ', min_size=1, max_size=6), min_size=1, max_size=6), data=st.data())
def test_an_answer_is_one_of_its_choices(choices: list[str], data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    if kind in ("metaspace", "unigram"):  # which lack the tokens of some bytes
        choices = [choice for choice in choices if choice.isascii() and choice.isprintable()] or ["a"]
    assert answer_of(kind, data.draw(st.integers(0, 99)), choice=choices) in choices


@st.composite
def patterns(draw: st.DrawFn, depth: int = 3) -> tuple[str, frozenset[str]]:
    """A regular expression and all texts that it matches, by the meaning of its parts."""
    kind = draw(st.sampled_from(["text", "choice", "sequence", "optional", "repeat"])) if depth else "text"
    if kind == "text":
        text = draw(st.text("abté\n", min_size=1, max_size=3))
        return re.escape(text), frozenset([text])
    first, texts_of_first = draw(patterns(depth=depth - 1))
    if kind == "optional":
        return f"({first})?", texts_of_first | {""}
    if kind == "repeat":
        return f"({first}){{1,2}}", texts_of_first | {a + b for a in texts_of_first for b in texts_of_first}
    second, texts_of_second = draw(patterns(depth=depth - 1))
    if kind == "choice":
        return f"({first}|{second})", texts_of_first | texts_of_second
    return first + second, frozenset(a + b for a, b in itertools.product(texts_of_first, texts_of_second))


@settings(max_examples=examples(60, 30), deadline=None)
@given(pattern=patterns(), kind=st.sampled_from(("storyteller", "gguf")), seed=st.integers(0, 99))
def test_exactly_the_tokens_that_keep_a_beginning_are_allowed(
    pattern: tuple[str, frozenset[str]], kind: str, seed: int
) -> None:
    tokenizer, (expression, members) = tokenizer_of(kind), pattern
    wanted = [text.encode() for text in members]
    spelled = dict(enumerate(spelled_by(tokenizer)))

    def look(answer: list[int], allowed: list[int]) -> None:
        text = bytes_of(tokenizer, answer)
        rest = [member[len(text) :] for member in wanted if member.startswith(text)]
        expected = {token for token, data in spelled.items() if data and any(map(lambda r: r.startswith(data), rest))}
        if b"" in rest:
            expected |= tokenizer.eos_ids
        assert set(allowed) == expected

    answer = random_answer(constraint_of(kind, regex=expression), tokenizer, seed, look=look)
    assert bytes_of(tokenizer, answer).decode() in members


@pytest.mark.parametrize("kind", KINDS)
def test_forced_tokens_are_those_that_masks_allow(kind: str) -> None:
    """And many tokens of a schema are forced."""
    tokenizer, schema = tokenizer_of(kind), PERSON | {"required": list(PERSON["properties"])}
    chosen = 0

    def count(answer: list[int], allowed: list[int]) -> None:
        nonlocal chosen
        chosen += 1

    answers = [
        [
            random_answer(constraint_of(kind, json_schema=schema), tokenizer, seed, forced=forced, look=look)
            for seed in range(5)
        ]
        for forced, look in ((True, count), (False, lambda answer, allowed: None))
    ]
    assert answers[0] == answers[1]
    assert chosen < 0.8 * sum(map(len, answers[0]))


def test_forced_tokens_are_those_of_the_tokenizer() -> None:
    """A text without a choice gets the tokens that the tokenizer gives it, and its last one may grow."""
    tokenizer = tokenizer_of("byte-level")
    text = " and she said that they should go to the garden"
    constraint = constraint_of("byte-level", regex=re.escape(text) + "[a-z]{1,3}!")
    *known, last = tokenizer.encode(text, add_special=False)
    assert constraint.forced() == known
    assert constraint.forced() == []
    assert {tokenizer.bytes_of(token) for token in tokens_of(constraint.mask())} > {tokenizer.bytes_of(last)}


def test_tokens_can_be_taken_back_and_drafts_get_their_masks() -> None:
    kind, tokenizer, chance = "storyteller", tokenizer_of("storyteller"), random.Random(1)
    constraint = constraint_of(kind, json_schema=PERSON)
    for number in range(20):
        if constraint.is_complete:
            break
        before = constraint.mask()
        draft = []
        masks = [before]
        for _ in range(4):
            draft.append(chance.choice(tokens_of(masks[-1])))
            constraint.accept(draft[-1])
            masks.append(constraint.mask())
        constraint.truncate(number)
        assert (constraint.mask() == before).all()
        constraint.prepare([*draft, tokenizer.bos_id, 5])
        made = constraint.masks()
        assert len(made) <= len(masks) and all((a == b).all() for a, b in zip(made, masks, strict=False))
        assert len(made) == len(masks) or draft[len(made) - 1] in tokenizer.eos_ids
        constraint.accept(draft[0])


def test_a_token_that_is_not_allowed_is_refused_and_changes_nothing() -> None:
    constraint = constraint_of("storyteller", choice=["red", "green"])
    before = constraint.mask()
    for token in (tokenizer_of("storyteller").bos_id, 300, tokenizer_of("storyteller").vocab_size + 3):
        assert token not in tokens_of(before)
        with pytest.raises(RequestError, match=r"choice: .*(doesn't satisfy|out of range)"):
            constraint.accept(token)
        assert (constraint.mask() == before).all()


def test_text_that_spells_a_control_token_is_not_that_token() -> None:
    tokenizer = tokenizer_of("byte-level")
    for name in CONTROL:
        answer = random_answer(constraint_of("byte-level", choice=[name]), tokenizer, 0)
        assert len(answer) > 1 and bytes_of(tokenizer, answer).decode() == name


def test_a_control_token_comes_where_its_id_stands_and_nowhere_else() -> None:
    constraint = constraint_of("byte-level", grammar='start: TEXT <[1]> "<[1]>" /<[1]>/\nTEXT: /[^<]+/')
    answer = random_answer(constraint, tokenizer_of("byte-level"), 3)
    text = bytes_of(tokenizer_of("byte-level"), answer)
    assert answer.count(1) == 1 and text.endswith(b"<[1]><1>") and not text.startswith(b"<")
    with pytest.raises(RequestError, match=r"grammar cannot be used: .*9999"):
        constraint_of("byte-level", grammar="start: <[9999]>")
