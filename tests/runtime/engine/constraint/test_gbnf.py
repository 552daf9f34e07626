"""GBNF grammars mean what they mean in llama.cpp, whose verdicts on these made-up ones are recorded here.

They are those of `llama_grammar_init_impl` and `llama_grammar_accept_token` of llama.cpp's src/llama-grammar.cpp, as
its own test-grammar-integration.cpp asks them.
"""

import pytest

from mlxr.compiler.errors import RequestError
from mlxr_tests.byte_tokenizer import END, NUM_CONTROL, ByteTokenizer
from mlxr_tests.constrained import tokens_of
from mlxr_tests.outside_cases import Answer, Judge

CASES: dict[str, tuple[str, list[str | Answer], list[str | Answer]]] = {
    "a dash in a class": (r"root ::= [x\-z] [a-] [-b] [+--]", ["-ab,", "z--+"], ["yab+", "xbb,", "xaa,", "xab."]),
    "nothing at the end of alternatives": (
        'tail ::= "b" | ("c" | )\nroot ::= "a" tail |',
        ["", "a", "ab", "ac"],
        ["b", "abc"],
    ),
    "nothing at their beginning": ("root ::= | x\nx ::= | [0-9] x", ["", "1", "12"], ["a", "1a"]),
    "forms of repetition": (
        'root ::= "ab"{2} [0-9]{1,} "x"{ 0 , 2 } ("y" "z"?){1,2} "w" *',
        ["abab1y", "abab12xxyzyzww", "abab0yy"],
        ["ab1y", "ababy", "abab1xxxy", "abab1yyy", "abab1"],
    ),
    "repetition of repetition": (
        'root ::= "a"{2}{2} "b"+? [c]*{1,2}',
        ["aaaa", "aaaabb", "aaaabccc"],
        ["aa", "aaa", "aaaaaa"],
    ),
    "escapes": (
        r'root ::= "\x41\u00e9\U0001F600\t\\\"\[\]\-" [\x42-\u0044\n]',
        ['Aé😀\t\\"[]-C', 'Aé😀\t\\"[]-\n'],
        ['Aé😀\t\\"[]-E', 'A\xc3\xa9😀\t\\"[]-C'],
    ),
    "a dot is any character": ('root ::= . "." .', ["\n.é", "a.😀"], ["ab.", "..", "a.é "]),
    "negated classes": (r'root ::= [^a-c"\]]+', ["d\n", "é\\"], ["", "a", "]", 'd"']),
    "classes without characters": ("root ::= [] [^] [z-a]? [b]", ["b"], ["", "^b", "zb"]),
    "comments and lines": (
        '# "one\nroot ::= # two\n  "a" ( # three\n "b"\n\n | "c" ) | # four\n  "d" \t\r\n\r\n\n  # five\nr-2 ::= "e"#',
        ["ab", "ac", "d"],
        ["a", "b", "e"],
    ),
    "names": ('  root ::= 2nd-Rule--x a1\n2nd-Rule--x ::= "a"\na1 ::= "b"\nA1 ::= "c"', ["ab"], ["ac", "a"]),
    "the last definition of a rule": ('root ::= a\na ::= "x"\na ::= "y"', ["y"], ["x", "xy"]),
    "a word that continues as another rule": (
        'root ::= [a-z]+ "foo" "s"?',
        ["afoo", "foofoo", "xfoofoos"],
        ["foo", "fooa", "xfo"],
    ),
    "a shorter word where the longer one fails": (
        'root ::= ("a" | "abc") ("bd" | "d")',
        ["abd", "abcd", "ad"],
        ["abc", "abcbc"],
    ),
    "words in a rule that contains itself": (
        'root ::= "(" (root " ")* name ")"\nname ::= [a-z]+ | "end" [0-9]',
        ["(a)", "(end1)", "((end) (x) enda)"],
        ["()", "(en1)", "((a)b)", "(end1 )"],
    ),
    "text that its end cuts short": (
        'root ::= text call?\ntext ::= ([^<] | "<" [^t])*\ncall ::= "<t>" args\nargs ::= "{" args? "}"',
        ["", "a<b", "a<b<t>{{}}", "<t>{}"],
        ["a<", "<t>", "<t>{{}", "a<t"],
    ),
    "a middle that is not marked": (
        'root ::= "a" root "a" | "b" root "b" | [ab]?',
        ["", "aba", "abba", "bab"],
        ["ab", "abab", "abb"],
    ),
    "spaces before and after": (
        'root ::= ws item (ws "," ws item)* ws\nitem ::= [0-9]+ | "[" ws root? ws "]"\nws ::= [ \\n]*',
        [" 1 ,[ 2\n, 3 ] ", "[]", "[ ]", "7"],
        ["", ",", "1 2", "[1,]"],
    ),
    "expressions": (
        'root ::= sum ("=" sum)?\nsum ::= product ([-+] product)*\nproduct ::= atom ("*" atom)*\n'
        'atom ::= [0-9]+ | [a-z] [a-z0-9]* ("(" sum ("," sum)* ")")? | "(" sum ")"',
        ["1", "a1*(2+b)=f(x,1)", "12-f(g(1))*x"],
        ["", "1+", "2a", "f()", "(1", "a=b=c"],
    ),
    "tokens": (
        "root ::= <[10]> (!<[11]>)* <[11]> [a-z]+",
        [(10, 11, "a"), (10, "hé", 12, "<[11]>", 13, 11, "ok"), (10, 10, 11, "x")],
        [(10, "a"), (11, "a"), (10, 11), (10, 11, 11, "a"), (10, 11, "A")],
    ),
    "tokens in rules that repeat": (
        "root ::= thought+ text\nthought ::= <[5]> word* <[6]>\nword ::= !<[6]>\ntext ::= [^\\n]*",
        [(5, 6), (5, "ab", 6, 5, 7, 6, "text"), (5, 5, 6, "<")],
        [(5,), ("a",), (5, 6, "a\n")],
    ),
}
REFUSED = [
    ('root ::= "a"{,2}', "line 1, column 14, before ',2}': expected a number"),
    ('root ::= "a"{2', "line 1, column 15, before 'the end': expected }"),
    ("root ::= * [a]", r"nothing stands before \* that could be repeated"),
    (r'root ::= "\q"', r"\\q is not an escape of GBNF"),
    (r'root ::= "\x4"', r"expected 2 hexadecimal digits after \\x"),
    ("root ::= [a-", "has no end"),
    ("root ::= (a\na ::= b", r"line 2, column 3, .*expected \)"),
    ("root = [a]\nx ::= [a]", "line 1, column 6, before '= .a.': expected ::= after the name root"),
    ("root ::= [a]\n | [b]", "line 2, column 2, .*expected the name of a rule"),
    ("root ::= [a] $", "expected a character, a rule, a group or the end of the line"),
    ("root ::= <[x]>", r"<\[x\]> is not one token of the model"),
]
JUDGE = Judge(ByteTokenizer())


@pytest.mark.parametrize("name", CASES)
def test_answers_are_judged_as_by_llama_cpp(name: str) -> None:
    grammar, right, wrong = CASES[name]
    constraint = JUDGE.constraint("grammar", grammar)
    judged = {answer: JUDGE.allows(constraint, _parts(answer)) for answer in [*right, *wrong]}
    assert judged == dict.fromkeys(right, True) | dict.fromkeys(wrong, False)


@pytest.mark.parametrize(("grammar", "message"), REFUSED, ids=[grammar for grammar, _ in REFUSED])
def test_what_llama_cpp_cannot_read_is_refused_with_its_place(grammar: str, message: str) -> None:
    with pytest.raises(RequestError, match=f"grammar: cannot be read as GBNF: (?s:.*){message}"):
        JUDGE.constraint("grammar", grammar)


def test_left_recursion_works() -> None:
    """llama.cpp refuses it."""
    constraint = JUDGE.constraint("grammar", 'root ::= root "+" num | num\nnum ::= num [0-9] | [1-9]')
    assert [text for text in ("1", "12+3+40", "", "+", "1+", "01") if JUDGE.allows(constraint, (text,))] == [
        "1",
        "12+3+40",
    ]


def test_tokens_are_named_by_their_text() -> None:
    judge = Judge(ByteTokenizer(longer=["<b>"], control={7: "<think>", 8: "</think>"}))
    constraint = judge.constraint("grammar", "root ::= <think> !</think>* </think> <b>")
    bold = NUM_CONTROL + 256
    for answer, expected in (
        ((7, "x<think>", 9, 8, bold), True),
        ((7, 8, "<b>"), False),
        (("<think>", 8, bold), False),
    ):
        assert judge.allows(constraint, answer) == expected
    with pytest.raises(RequestError, match="<thought> is not one token of the model: write text in quotes"):
        judge.constraint("grammar", "root ::= <thought>")


def test_any_other_token_is_not_one_that_ends_an_answer() -> None:
    """Nor one that the model has beyond its tokenizer."""
    constraint = JUDGE.constraint("grammar", 'root ::= !<[11]> "."')
    allowed = set(tokens_of(constraint.mask()))
    assert allowed == set(range(NUM_CONTROL + 256)) - {11, END}


def _parts(answer: str | Answer) -> Answer:
    return (answer,) if isinstance(answer, str) else answer
