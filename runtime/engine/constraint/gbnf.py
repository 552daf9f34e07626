"""GBNF, the grammars of llama.cpp, as Lark grammars of llguidance."""

import re
from collections.abc import Callable

from mlxr.runtime.engine.constraint.gbnf_syntax import (
    Characters,
    Choice,
    Lexeme,
    Node,
    Repetition,
    Rule,
    Sequence,
    Text,
    Token,
    parse_gbnf,
)
from mlxr.runtime.engine.constraint.grammar_tokens import GrammarTokens
from mlxr.runtime.engine.constraint.lexemes import Lexemes
from mlxr.runtime.engine.errors import ConstraintError

_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_NOTHING = '""'
_NEVER = r"/[^\x{0}-\x{10FFFF}]/"


def is_gbnf(text: str) -> bool:
    """Whether a grammar is GBNF, whose rules are written `name ::= ...`; else it is Lark."""
    return _RULE.search(text) is not None


def gbnf_to_lark(text: str, tokens: GrammarTokens) -> str:
    """The Lark grammar that means what a GBNF grammar means.

    Args:
        text: the grammar.
        tokens: the model's, by which names of tokens are found.

    Raises:
        ConstraintError: it is not GBNF, or names a token that the model lacks, or is too large.
    """
    rules = parse_gbnf(text, tokens.id_of)
    try:
        return _Writer(rules, tokens).written()
    except RecursionError as error:
        raise ConstraintError("grammar: the GBNF is nested too deeply", "grammar") from error


class _Writer:
    """Writes rules in lower case, which are the parser's, and terminals in upper case, which are the lexer's."""

    def __init__(self, rules: dict[str, Node], tokens: GrammarTokens) -> None:
        self._given, self._tokens = rules, tokens
        self._lexemes = Lexemes(rules)
        self._names = {name: f"r{number}" for number, name in enumerate(self._lexemes.rules)} | {"root": "start"}
        self._terminals: dict[Lexeme, str] = {}
        self._terminal_rules: dict[str, str] = {}
        self._lines: list[str] = []

    def written(self) -> str:
        for name, node in self._lexemes.rules.items():
            line = f"{self._names[name]}: {self._write(node, self._leaf)}"
            self._lines.append(line)
        return "\n".join(self._lines)

    def _leaf(self, node: Node) -> str:
        """A leaf of a rule."""
        if isinstance(node, Lexeme):
            if node not in self._terminals:
                self._terminals[node] = name = f"T{len(self._terminals)}"
                self._lines.append(f"{name}: {self._write(Sequence(node.nodes), self._part_of_terminal)}")
            return self._terminals[node]
        if isinstance(node, Rule):
            return self._names[node.name]
        assert isinstance(node, Token), "all else is a lexeme"
        if node.is_negated:
            return self._tokens.others(node.token_id)
        return f"<[{node.token_id}]>"

    def _part_of_terminal(self, node: Node) -> str:
        """A leaf of a terminal."""
        if isinstance(node, Text):
            return f"/{''.join(map(_sign, node.text))}/" if node.text else _NOTHING
        if isinstance(node, Characters):
            ranges = "".join(f"\\x{{{first:X}}}-\\x{{{last:X}}}" for first, last in node.ranges)
            return f"/[{ranges}]/" if ranges else _NEVER
        assert isinstance(node, Rule), "a regular leaf"
        if node.name not in self._terminal_rules:
            self._terminal_rules[node.name] = name = f"R{len(self._terminal_rules)}"
            self._lines.append(f"{name}: {self._write(self._given[node.name], self._part_of_terminal)}")
        return self._terminal_rules[node.name]

    def _write(self, node: Node, leaf: Callable[[Node], str]) -> str:
        if isinstance(node, Sequence):
            return f"({' '.join(self._write(part, leaf) for part in node.parts)})" if node.parts else _NOTHING
        if isinstance(node, Choice):
            return f"({' | '.join(self._write(part, leaf) for part in node.parts)})"
        if isinstance(node, Repetition):
            if node.most == 0:
                return _NOTHING
            most = "" if node.most is None else node.most
            return f"({self._write(node.part, leaf)}){{{node.least},{most}}}"
        return leaf(node)


def _sign(sign: str) -> str:
    """A character of a regular expression."""
    return sign if sign.isascii() and sign.isalnum() else f"\\x{{{ord(sign):X}}}"
