"""What cannot be compiled is refused with its reason, hostile grammars soon and harmlessly; what compilers share."""

import gc
import math
import os
import signal
import sys
import threading
import time
import weakref

import pytest

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.constraint import ConstraintCompiler, constraint_compiler
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer
from mlxr_tests.constrained import bytes_of, random_answer, tokens_of
from mlxr_tests.storyteller import ROOT

TOKENIZER = load_tokenizer(ROOT / "models/storyteller/tokenizer.model")


def compiler() -> ConstraintCompiler:
    return ConstraintCompiler(TOKENIZER, TOKENIZER.vocab_size, TOKENIZER.eos_ids)


@pytest.fixture(scope="module")
def shared() -> ConstraintCompiler:
    return compiler()


def chain(of: str, length: int) -> str:
    return "\n".join([f"start: {of}0", *(f'{of}{i}: {of}{i + 1} "x"' for i in range(length)), f'{of}{length}: "a"'])


REFUSED = [
    ({"regex": "(a"}, "regex cannot be used: (?s:.*)unclosed group"),
    ({"regex": "(?=a)b"}, "regex cannot be used: (?s:.*)look-around"),
    ({"regex": "a^b"}, "regex cannot be used: "),
    ({"regex": "\ud800"}, "regex has half of a surrogate pair"),
    ({"regex": "(" * 300 + ")" * 300}, "regex cannot be used: "),
    ({"regex": "a" * (1 << 20) + "b"}, "regex has 1048577 characters, and at most 1048576"),
    ({"regex": "(a{300}){300}"}, "regex cannot be used: all texts begin with the same"),
    ({"choice": ["a", "\udfff"]}, "choice has half of a surrogate pair"),
    ({"json_schema": '{"type": '}, "json_schema is not JSON: Expecting value: line 1 column 10"),
    ({"json_schema": "[]"}, r"json_schema is \[\], expected a JSON object"),
    ({"json_schema": "false"}, "json_schema is False, expected a JSON object, or true"),
    ({"json_schema": "[" * 10_000}, "json_schema is not JSON: it is nested too deeply"),
    ({"json_schema": {"const": math.nan}}, "json_schema is not JSON: Out of range float"),
    ({"json_schema": {"const": {1, 2}}}, "json_schema is not JSON: .*set is not JSON serializable"),
    ({"json_schema": {"x-guidance": {"lenient": True}, "not": {}}}, "json_schema has the key x-guidance"),
    (
        {"json_schema": {"properties": {"a": {"uniqueItems": True, "not": {"multipleOf": 2}}}}, "strict": True},
        r"cannot be enforced: uniqueItems \(#/properties/a\); not \(#/properties/a\): leave them out, or do not set",
    ),
    (
        {"json_schema": {"oneOf": [{"type": "integer"}, {"type": "number"}]}, "strict": True},
        r"enforced: oneOf \(#\), w",
    ),
    ({"json_schema": {"type": "text"}}, "Invalid type: text"),
    ({"json_schema": {"type": "string", "pattern": "("}}, "(?s:.*)unclosed group"),
    ({"json_schema": {"$ref": "#/$defs/none"}}, "Pointer '/.defs/none' does not exist"),
    ({"json_schema": {"$ref": "https://example.com/schema"}}, "does not fetch resources"),
    ({"json_schema": {"not": {"not": False}}}, "Unsatisfiable schema"),
    ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 4}}, "Unsatisfiable schema: minimum"),
    ({"json_schema": {"$ref": "#"}}, "json_schema cannot be used: no text of the model's tokens follows it"),
    (
        {"json_schema": {"properties": {f"p{i}": {} for i in range(20_000)}}},
        "schema too large|nested too deeply|CPU time",
    ),
    ({"json_schema": {"enum": [f"{i}" for i in range(100_000)]}}, "json_schema has [0-9]+ characters|too big"),
    (
        {"json_schema": {"allOf": [{"anyOf": [{"properties": {f"{i} {j}": {}}} for j in "abc"]} for i in range(15)]}},
        "large",
    ),
    ({"json_schema": {"type": "integer", "multipleOf": 99_999_989}}, "took more than 0.5 s of CPU time, when tried"),
    ({"grammar": 'start: "a'}, "grammar cannot be used: "),
    ({"grammar": "start: none"}, "grammar cannot be used: (?s:.*)none"),
    ({"grammar": "start: start"}, "grammar cannot be used: no text"),
    ({"grammar": 'start: "a" <|im_end|>'}, r"grammar names the token <\|im_end\|>: spell it in quotes"),
    ({"grammar": 'start: "<a>" /<b>/ # <c>\n  <[1-3]>'}, r"grammar names the token <\[1-3\]>"),
    ({"grammar": "start: a\na[lazy, temperature = 0.5]: /x+/"}, "grammar has the option temperature"),
    ({"grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000}, "grammar cannot be used: .*too deeply nested"),
    ({"grammar": chain("rule", 20_000)}, "grammar cannot be used: it is nested too deeply, when tried"),
    ({"grammar": chain("TERM", 20_000)}, "grammar cannot be used: it is nested too deeply, when tried"),
    ({"grammar": '{"grammars": [{"lark_grammar": "start: /a/"}]}'}, "grammar cannot be used: "),
    ({"grammar": 'root ::= "a'}, "grammar: cannot be read as GBNF: line 1, column 12, .*has no end"),
    ({"grammar": "root ::= other"}, "grammar: cannot be read as GBNF: line 1, column 10, .*no rule has the name other"),
    ({"grammar": 'main ::= "a"'}, "grammar: cannot be read as GBNF: no rule has the name root"),
    ({"grammar": 'root ::= "\\uD800"'}, r"grammar: cannot be read as GBNF: .* \\uD800 is not a character"),
    ({"grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000}, "grammar: the GBNF is nested too deeply"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_compiled_is_refused(
    shared: ConstraintCompiler, options: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if message.startswith("took more"):
        shared._end_process()
        monkeypatch.setattr(constraint_compiler, "CPU_SECONDS", 0.5)
    start = time.monotonic()
    with pytest.raises(RequestError, match=message) as error:
        shared.compile(Sampling(**options))
    assert time.monotonic() - start < 15
    assert len(str(error.value)) < 1000
    assert shared.compile(Sampling(choice=["a"])) is not None, "it still works"


@pytest.mark.parametrize(
    "options",
    [
        {"regex": "[a-z]{1,100000}"},
        {"regex": "(.*a){200}"},
        {"regex": "(a|b)*a(a|b){30}"},
        {"json_schema": {"type": "array", "minItems": 10**9}},
        {"json_schema": {"type": "string", "maxLength": 10**9}},
        {"grammar": 'start: e\ne: e e | e e e | "a" | /a+/ | "a"*'},
        {"choice": [f"choice number {i} of many" for i in range(2000)]},
    ],
    ids=lambda options: str(options)[:40],
)
def test_what_is_only_large_works(shared: ConstraintCompiler, options: dict[str, object]) -> None:
    constraint = shared.compile(Sampling(**options))
    assert constraint is not None
    for _ in range(20):
        constraint.forced()
        constraint.accept(tokens_of(constraint.mask())[-1])


def test_nothing_is_made_without_a_constraint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    assert compiler().compile(Sampling(temperature=1.0, stop="x")) is None
    with pytest.raises(RequestError, match=r"needs the package llguidance, which cannot be imported \(.*pip install"):
        compiler().compile(Sampling(choice=["a"]))


def test_a_constraint_needs_a_tokenizer_that_ends_texts() -> None:
    with pytest.raises(RequestError, match="needs a tokenizer, and the model has none"):
        ConstraintCompiler(None, 300, ()).compile(Sampling(regex="a"))
    for eos_ids in ((), (4096,)):
        with pytest.raises(RequestError, match="needs an end-of-sequence token"):
            ConstraintCompiler(TOKENIZER, 4096, eos_ids).compile(Sampling(regex="a"))


def test_a_model_may_lack_the_last_tokens_of_its_tokenizer() -> None:
    small = ConstraintCompiler(TOKENIZER, 301, TOKENIZER.eos_ids)  # bytes, and some pieces
    for seed in range(10):
        constraint = small.compile(Sampling(regex="(Once upon a time){2}[a-z]{3}"))
        assert constraint is not None
        answer = random_answer(constraint, TOKENIZER, seed)
        assert max(answer) < 301 and bytes_of(TOKENIZER, answer).startswith(b"Once upon a timeOnce upon a time")


def test_answers_that_share_a_grammar_do_not_fill_it_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_compiler, "_LIMITS", {"max_lexer_states": 700, "verbose_errors": False})
    few_states, compiled = compiler(), 0
    compile_anew = ConstraintCompiler._compile

    def counted(self: ConstraintCompiler, grammar: object) -> object:
        nonlocal compiled
        compiled += 1
        return compile_anew(self, grammar)

    monkeypatch.setattr(ConstraintCompiler, "_compile", counted)
    for seed in range(40):
        constraint = few_states.compile(Sampling(regex="(a|b)*a(a|b){12}!"))
        assert constraint is not None
        text = bytes_of(TOKENIZER, random_answer(constraint, TOKENIZER, seed)).decode()
        assert text[-14] == "a" and text[-1] == "!"
    assert 1 < compiled < 40


def test_threads_share_a_compiler(shared: ConstraintCompiler) -> None:
    texts: list[str] = []

    def answer(seed: int) -> None:
        for number in range(5):
            constraint = shared.compile(Sampling(regex=f"[a-c]{{5}}{number}"))
            assert constraint is not None
            texts.append(bytes_of(TOKENIZER, random_answer(constraint, TOKENIZER, seed)).decode())

    threads = [threading.Thread(target=answer, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 30 and all(set(text[:5]) <= set("abc") and text[5] in "01234" for text in texts)


def test_a_process_that_was_killed_is_replaced_and_ends_with_its_compiler() -> None:
    own = compiler()
    own.compile(Sampling(regex="a"))
    assert own._process is not None
    os.kill(own._process.pid, signal.SIGKILL)
    with pytest.raises(RequestError, match="regex cannot be used: it ended its process"):
        own.compile(Sampling(regex="b"))
    assert own.compile(Sampling(regex="b")) is not None
    pid = own._process.pid
    own.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_nothing_stays_of_a_compiler() -> None:
    """Its vocabulary, megabytes of a large model, and llguidance's view of it hold each other until it is closed."""
    gone = compiler()
    assert gone.compile(Sampling(choice=["a"])) is not None and gone._wrapper is not None
    vocabulary = weakref.ref(gone._wrapper)
    gone.close()
    del gone
    gc.collect()
    assert vocabulary() is None
