"""Cuts GBNF rules into lexemes, so that a parser with a lexer accepts exactly what the grammar means.

GBNF has no lexemes: its terminals are characters. llguidance reads the longest lexeme that its lexer can, and never
goes back. So a part of the grammar may be one lexeme only if that is always right: wherever a text of lexeme `a` ends
and the next character, by the grammar, can be `c`, no lexeme goes on with `c` after this text. The largest parts that
are regular are tried first; those that swallow what should follow are cut, at last into single characters, which are
always right, and slow.

Sets of characters are integers: a bit for each group of characters that the grammar never tells apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

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
)
from mlxr.runtime.engine.errors import ConstraintError

_MOST_PAIRS = 4_000_000
_MOST_STEPS = 1_000_000
_MOST_POSITIONS = 3_000


@dataclass
class _Facts:
    """Of a node or a lexeme: whether it may be empty, the characters that begin it, and those that come later in it."""

    is_nullable: bool
    first: int
    later: int


@dataclass
class _Positions:
    """The places of characters in a regular node (Glushkov's automaton): where texts begin, go on and end.

    A repetition counts as one without limits: a text of the node is one of the automaton, but not always the reverse.
    """

    masks: list[int] = field(default_factory=list)
    follow: list[set[int]] = field(default_factory=list)

    def add(self, mask: int) -> int:
        if len(self.masks) >= _MOST_POSITIONS:
            raise _TooManyPositionsError
        self.masks.append(mask)
        self.follow.append(set())
        return len(self.masks) - 1


class _TooManyPositionsError(Exception):
    pass


_Ends = tuple[bool, set[int], set[int]]
"""Whether a part may be empty, and the positions where its texts begin and end."""


class Lexemes:
    """The cut of a grammar.

    Attributes:
        rules: the rules that are needed, each as a tree whose leaves are lexemes, tokens and rules.
    """

    def __init__(self, rules: dict[str, Node]) -> None:
        """Cuts a grammar.

        Raises:
            ConstraintError: it is too large.
        """
        self._given = rules
        self._regular_rules = _regular_rules(rules)
        self._regular: dict[Node, bool] = {}
        self._facts: dict[Node, _Facts] = {}
        self._alphabet = _alphabet(rules)
        self._spelled: dict[Node, tuple[Node, ...]] = {}
        self._cut: set[Node] = set()
        self._cut_rules: set[str] = set()
        self._automata: dict[Lexeme, tuple[_Positions, _Ends] | None] = {}
        self._steps = 0
        while True:
            self.rules, parents = self._planned()
            conflicts = self._conflicts()
            if not conflicts:
                return
            for lexeme in conflicts:  # each is cut further, which ends with single characters
                node = lexeme.nodes[0] if len(lexeme.nodes) == 1 else parents[lexeme]
                if isinstance(node, Rule):
                    self._cut_rules.add(node.name)
                else:
                    self._cut.add(node)

    def _is_regular(self, node: Node) -> bool:
        """Whether a node is a regular expression: no rule in it contains itself, and it has no token."""
        if node not in self._regular:
            if isinstance(node, Rule):
                self._regular[node] = node.name in self._regular_rules
            else:
                self._regular[node] = not isinstance(node, Token) and all(map(self._is_regular, _parts(node)))
        return self._regular[node]

    def _planned(self) -> tuple[dict[str, Node], dict[Lexeme, Node]]:
        """The rules that are needed, and for each lexeme of several nodes the sequence that they are in."""
        parents: dict[Lexeme, Node] = {}
        planned: dict[str, Node] = {}
        waiting = ["root"]
        while waiting:
            name = waiting.pop()
            if name not in planned:
                planned[name] = self._plan(self._given[name], parents)
                waiting += [node.name for node in _leaves(planned[name]) if isinstance(node, Rule)]
        return planned, parents

    def _is_lexeme(self, node: Node) -> bool:
        if isinstance(node, Rule) and node.name in self._cut_rules:
            return False
        return node not in self._cut and self._is_regular(node)

    def _plan(self, node: Node, parents: dict[Lexeme, Node]) -> Node:
        if self._is_lexeme(node):
            return Lexeme((node,))
        if isinstance(node, Text):
            if node not in self._spelled:
                self._spelled[node] = tuple(Characters(((ord(sign), ord(sign)),)) for sign in node.text)
            return Sequence(tuple(Lexeme((each,)) for each in self._spelled[node]))
        if isinstance(node, Choice):
            return Choice(tuple(self._plan(part, parents) for part in node.parts))
        if isinstance(node, Repetition):
            return Repetition(self._plan(node.part, parents), node.least, node.most)
        if not isinstance(node, Sequence):
            return node
        parts: list[Node] = []
        for part in node.parts:
            planned = self._plan(part, parents)
            last = parts[-1] if parts else None
            if node not in self._cut and isinstance(planned, Lexeme) and isinstance(last, Lexeme):
                parts[-1] = Lexeme(last.nodes + planned.nodes)
            else:
                parts.append(planned)
        for lexeme in parts:
            if isinstance(lexeme, Lexeme) and len(lexeme.nodes) > 1:
                parents[lexeme] = node
        return Sequence(tuple(parts))

    def _conflicts(self) -> set[Lexeme]:
        """The lexemes that go on where another one should end."""
        after = _Following(self).after
        lexemes = list(after)
        if len(lexemes) ** 2 > _MOST_PAIRS:
            raise ConstraintError(
                f"grammar: the GBNF has {len(lexemes)} parts that are not regular expressions: too many", "grammar"
            )
        facts = {lexeme: self.facts(lexeme) for lexeme in lexemes}
        found = set()
        for longer in lexemes:
            later, first = facts[longer].later, facts[longer].first
            if later and any(
                after[ended] & later and facts[ended].first & first and self._swallows(longer, ended, after[ended])
                for ended in lexemes
            ):
                found.add(longer)
        return found

    def facts(self, node: Node) -> _Facts:
        """What is known of a regular node or a lexeme."""
        if isinstance(node, Lexeme):
            return _joined([self.facts(part) for part in node.nodes])
        if node not in self._facts:
            self._facts[node] = self._made_facts(node)
        return self._facts[node]

    def _made_facts(self, node: Node) -> _Facts:
        if isinstance(node, Text):
            masks = [self._mask(((ord(sign), ord(sign)),)) for sign in node.text]
            later = 0
            for mask in masks[1:]:
                later |= mask
            return _Facts(not masks, masks[0] if masks else 0, later)
        if isinstance(node, Characters):
            return _Facts(False, self._mask(node.ranges), 0)
        if isinstance(node, Rule):
            return self.facts(self._given[node.name])
        assert not isinstance(node, Token | Lexeme), "not regular"
        parts = [self.facts(part) for part in _parts(node)]
        if isinstance(node, Sequence):
            return _joined(parts)
        if isinstance(node, Choice):
            first = later = 0
            for part in parts:
                first, later = first | part.first, later | part.later
            return _Facts(any(part.is_nullable for part in parts), first, later)
        (part,) = parts
        later = part.later | (part.first if node.most is None or node.most > 1 else 0)
        return _Facts(part.is_nullable or node.least == 0, part.first, later)

    def _mask(self, ranges: tuple[tuple[int, int], ...]) -> int:
        mask = 0
        for first, last in ranges:
            mask |= (1 << self._alphabet[last + 1]) - (1 << self._alphabet[first])
        return mask

    def _swallows(self, longer: Lexeme, ended: Lexeme, next_signs: int) -> bool:
        """Whether `longer` can go on with one of `next_signs` where a text of `ended` ends. If in doubt it can."""
        automaton, other_automaton = self._automaton(longer), self._automaton(ended)
        if automaton is None or other_automaton is None:
            return True
        positions, (_, starts, _) = automaton
        others, (_, other_starts, ends) = other_automaton
        waiting = [(p, q) for p in starts for q in other_starts if positions.masks[p] & others.masks[q]]
        seen = set(waiting)
        while waiting:
            p, q = waiting.pop()
            self._steps += 1 + len(positions.follow[p]) * len(others.follow[q])
            if self._steps > _MOST_STEPS:
                return True
            if q in ends and any(positions.masks[step] & next_signs for step in positions.follow[p]):
                return True
            for step in positions.follow[p]:
                for other_step in others.follow[q]:
                    pair = step, other_step
                    if pair not in seen and positions.masks[step] & others.masks[other_step]:
                        seen.add(pair)
                        waiting.append(pair)
        return False

    def _automaton(self, lexeme: Lexeme) -> tuple[_Positions, _Ends] | None:
        if lexeme not in self._automata:
            positions = _Positions()
            try:
                self._automata[lexeme] = positions, self._place_all(positions, lexeme.nodes)
            except _TooManyPositionsError:
                self._automata[lexeme] = None
        return self._automata[lexeme]

    def _place_all(self, positions: _Positions, nodes: tuple[Node, ...]) -> _Ends:
        is_nullable, starts, ends = True, set[int](), set[int]()
        for node in nodes:
            part_is_nullable, part_starts, part_ends = self._place(positions, node)
            for end in ends:
                positions.follow[end] |= part_starts
            starts |= part_starts if is_nullable else set()
            ends = ends | part_ends if part_is_nullable else part_ends
            is_nullable = is_nullable and part_is_nullable
        return is_nullable, starts, ends

    def _place(self, positions: _Positions, node: Node) -> _Ends:
        if isinstance(node, Text):
            return self._place_all(positions, tuple(Characters(((ord(sign), ord(sign)),)) for sign in node.text))
        if isinstance(node, Characters):
            place = positions.add(self._mask(node.ranges))
            return False, {place}, {place}
        if isinstance(node, Rule):
            return self._place(positions, self._given[node.name])
        assert not isinstance(node, Token | Lexeme), "not regular"
        if isinstance(node, Sequence):
            return self._place_all(positions, node.parts)
        if isinstance(node, Choice):
            parts = [self._place(positions, part) for part in node.parts]
            starts = set[int]().union(*(part[1] for part in parts))
            ends = set[int]().union(*(part[2] for part in parts))
            return any(part[0] for part in parts), starts, ends
        is_nullable, starts, ends = self._place(positions, node.part)
        if node.most is None or node.most > 1:
            for end in ends:
                positions.follow[end] |= starts
        return is_nullable or node.least == 0, starts, ends


class _Following:
    """Which characters can follow each lexeme, by the rules of the grammar.

    Attributes:
        after: the characters by lexemes.
    """

    def __init__(self, lexemes: Lexemes) -> None:
        self._lexemes = lexemes
        self._nullable = dict.fromkeys(lexemes.rules, False)
        self._first = dict.fromkeys(lexemes.rules, 0)
        self._follow = dict.fromkeys(lexemes.rules, 0)
        self.after: dict[Lexeme, int] = {}
        while True:
            before = dict(self._nullable), dict(self._first)
            for name, node in lexemes.rules.items():
                self._nullable[name], self._first[name] = self._begin(node)
            if before == (self._nullable, self._first):
                break
        while True:
            known = dict(self._follow), dict(self.after)
            for name, node in lexemes.rules.items():
                self._spread(node, self._follow[name])
            if known == (self._follow, self.after):
                return

    def _begin(self, node: Node) -> tuple[bool, int]:
        """Whether a node may be empty, and the characters that begin it."""
        if isinstance(node, Lexeme):
            facts = self._lexemes.facts(node)
            return facts.is_nullable, facts.first
        if isinstance(node, Rule):
            return self._nullable[node.name], self._first[node.name]
        if isinstance(node, Token):
            return False, 0
        parts = [self._begin(part) for part in _parts(node)]
        if isinstance(node, Sequence):
            first = 0
            for is_nullable, begin in parts:
                first |= begin
                if not is_nullable:
                    return False, first
            return True, first
        first = 0
        for _, begin in parts:
            first |= begin
        is_nullable = any(part[0] for part in parts)
        return is_nullable or (isinstance(node, Repetition) and node.least == 0), first

    def _spread(self, node: Node, follow: int) -> None:
        """Tells the leaves of a node what can follow it."""
        if isinstance(node, Lexeme):
            self.after[node] = self.after.get(node, 0) | follow
        elif isinstance(node, Rule):
            self._follow[node.name] |= follow
        elif isinstance(node, Sequence):
            for part in reversed(node.parts):
                self._spread(part, follow)
                is_nullable, first = self._begin(part)
                follow = first | follow if is_nullable else first
        elif isinstance(node, Choice):
            for part in node.parts:
                self._spread(part, follow)
        elif isinstance(node, Repetition):
            again = self._begin(node.part)[1] if node.most is None or node.most > 1 else 0
            self._spread(node.part, follow | again)


def _parts(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Sequence | Choice):
        return node.parts
    return (node.part,) if isinstance(node, Repetition) else ()


def _leaves(node: Node) -> Iterator[Node]:
    parts = () if isinstance(node, Lexeme) else _parts(node)
    if not parts:
        yield node
    for part in parts:
        yield from _leaves(part)


def _joined(parts: list[_Facts]) -> _Facts:
    """The facts of parts that follow each other."""
    is_nullable, first, later = True, 0, 0
    for part in parts:
        later |= part.later
        if first:
            later |= part.first
        if is_nullable:
            first |= part.first
        is_nullable = is_nullable and part.is_nullable
    return _Facts(is_nullable, first, later)


def _alphabet(rules: dict[str, Node]) -> dict[int, int]:
    """The number of each group of characters, by the code points where groups begin."""
    starts = {0}
    for rule in rules.values():
        for node in _leaves(rule):
            if isinstance(node, Text):
                starts |= {code for sign in node.text for code in (ord(sign), ord(sign) + 1)}
            elif isinstance(node, Characters):
                starts |= {code for first, last in node.ranges for code in (first, last + 1)}
    return {start: number for number, start in enumerate(sorted(starts))}


def _regular_rules(rules: dict[str, Node]) -> set[str]:
    """The rules that are regular expressions: no rule in them contains itself, and they have no token."""
    needs = {name: {leaf.name for leaf in _leaves(node) if isinstance(leaf, Rule)} for name, node in rules.items()}
    users: dict[str, set[str]] = {name: set() for name in rules}
    for name, needed in needs.items():
        for each in needed:
            users[each].add(name)
    has_token = {name for name, node in rules.items() if any(isinstance(leaf, Token) for leaf in _leaves(node))}
    left = {name: len(needed) for name, needed in needs.items()}
    ready = [name for name, count in left.items() if count == 0 and name not in has_token]
    regular = set(ready)
    while ready:
        for user in users[ready.pop()]:
            left[user] -= 1
            if left[user] == 0 and user not in has_token:
                regular.add(user)
                ready.append(user)
    return regular
