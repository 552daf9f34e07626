"""Writes the grammar of an answer that must or may call tools, in Lark as llguidance has it."""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from mlxr.runtime.engine.constraint.grammar import lark_schema
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.tokenizer.token_names import names_pattern

ANYTHING = r"/(.|\n)*/"
_SLASH = re.compile(r"\\.|/", re.DOTALL)


class AnswerGrammar:
    """A grammar that is being written: rules by their names."""

    def __init__(self, control: Mapping[str, int]) -> None:
        """Starts without rules.

        Args:
            control: ids of the model's control tokens by their names.
        """
        self._control = control
        self._pattern = names_pattern([name for name in control if len(name) > 1])
        self._rules: dict[str, str] = {}

    def add(self, name: str, body: str, options: str = "") -> str:
        """Adds a rule, or finds it if there is one with this name; returns its name."""
        self._rules.setdefault(name, f"{name}{options}: {body}")
        return name

    def marker(self, name: str) -> str:
        """A marker: the control token of this name if the model has it, else text."""
        return f"<[{self._control[name]}]>" if name in self._control else self.text(name)

    def text(self, text: str) -> str:
        """Exactly this text."""
        return json.dumps(text, ensure_ascii=False)

    def literal(self, text: str) -> str:
        """Exactly this text, in which names of control tokens are these tokens."""
        return " ".join(self.marker(part) for part in self._pattern.split(text) if part)

    def shared_start(self, one: str, other: str) -> str:
        """What two texts begin with, without a part of a control token's name.

        Where either of two may come, it must be a literal of its own: of several that fit, the longest is taken.
        """
        same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
        shared = "".join(sign for sign, _ in same)
        names = [match.span() for text in (one, other) for match in self._pattern.finditer(text)]
        cut = min([start for start, end in names if start < len(shared) < end], default=len(shared))
        return shared[:cut]

    def up_to(self, rule: str, text: str, before: str = ANYTHING) -> str:
        """Any text up to another one, and that, in which names of control tokens are these tokens.

        Args:
            rule: a name for it.
            text: not empty.
            before: the expression of the text before.
        """
        first, *rest = [part for part in self._pattern.split(text) if part]
        return f"{self.until(rule, first, before)} {self.literal(''.join(rest))}".strip()

    def up_to_without(self, rule: str, text: str, others: Sequence[str]) -> str:
        """As `up_to`, where the text before has none of some others.

        Args:
            rule: a name for it.
            text: not empty.
            others: not empty either.
        """
        if not (excluded := self._excluded(others)):
            return self.up_to(rule, text)
        first, *rest = [part for part in self._pattern.split(text) if part]
        inner = self.add(rule.upper(), f"{ANYTHING}{excluded}")
        options = "" if first in self._control else "[lazy]"
        self.add(rule, f"{inner} {self.marker(first)}", options)
        return f"{rule} {self.literal(''.join(rest))}".strip()

    def without(self, rule: str, texts: Sequence[str]) -> str:
        """Any text that has none of some others.

        Args:
            rule: a name for it, in capitals.
            texts: not empty. Control tokens are never part of a text.
        """
        return self.add(rule, f"{ANYTHING}{self._excluded(texts)}")

    def _excluded(self, texts: Sequence[str]) -> str:
        """What is said of a text that has none of some others."""
        found = {}
        for text in texts:
            first = next(part for part in self._pattern.split(text) if part)
            if first not in self._control:
                escaped = re.sub(r"[.+*?()|\[\]{}^$/\\]", lambda sign: "\\" + sign[0], first).replace("\n", "\\n")
                found[escaped] = f" & ~/(.|\\n)*{escaped}(.|\\n)*/"
        return "".join(found.values())

    def until(self, rule: str, name: str, before: str = ANYTHING) -> str:
        """Any text up to a marker, and the marker.

        Args:
            rule: a name for it.
            name: of the marker.
            before: the expression of the text before.
        """
        if name in self._control:
            return self.add(rule, f"{before} {self.marker(name)}")
        return self.add(rule, f"{before} {self.text(name)}", "[lazy]")

    def schema(self, rule: str, schema: Any, *, strict: bool = False) -> str:
        """JSON of a schema.

        Args:
            rule: a name for it.
            schema: a dict.
            strict: whether a schema with keywords that cannot be enforced is refused.
        """
        return self.add(rule, f"%json {lark_schema(schema, strict=strict)}")

    def answer(self, sampling: Sampling) -> str | None:
        """What the request's own constraint allows; None if it has none, or one that cannot be a part of others."""
        if sampling.json_schema is not None:
            return self.add("answer", f"%json {lark_schema(sampling.json_schema, strict=sampling.strict)}")
        if sampling.regex is not None:
            return self.add("answer", expression(sampling.regex) if sampling.regex else '""')
        if sampling.choice is not None:
            return self.add("answer", " | ".join(map(self.text, sampling.choice)))
        return None

    def written(self, start: str) -> str:
        """The grammar.

        Args:
            start: what an answer is.
        """
        return "\n".join([f"start: {start}", *self._rules.values()])


def expression(pattern: str) -> str:
    """A regular expression that is not empty, as a grammar has it."""
    pattern = _SLASH.sub(lambda sign: r"\/" if sign[0] == "/" else sign[0], pattern).replace("\n", r"\n")
    return f"/{pattern}/"
