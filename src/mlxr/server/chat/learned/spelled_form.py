"""A form with its markers as they come in answers of one model: control tokens are told from text that spells them."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mlxr.runtime.tokenizer.token_names import names_pattern
from mlxr.server.chat.answer_reader import Markers, named, spelled
from mlxr.server.chat.learned.answer_form import AnswerForm, Slot, Style
from mlxr.server.chat.learned.lexemes import chunks
from mlxr.server.chat.learned.python_tag import TAG

CALL, THOUGHT, THOUGHT_END, CONTENT, NOTHING = "call", "thought", "thought end", "content", "nothing"
_BRACKETS = re.compile(r"(^\[|\[$|^\]|\]$)")
_CAPITALS = re.compile(r"\[/?[A-Z_]+\]")
_WORD = re.compile(r"[^\W_]")


class Speller:
    """Spells markers."""

    def __init__(self, control: Collection[str]) -> None:
        """Takes the names of the model's control tokens."""
        self._names = names_pattern([name for name in control if len(name) > 1])

    def text(self, text: str) -> str:
        """A text in which control tokens are spelled."""
        return self._names.sub(lambda match: spelled(match[0]), text)

    def chunks(self, text: str) -> list[str]:
        """The parts of a marker, spelled; white space between them does not matter."""
        return [self.text(part) for part in chunks(text)]

    def is_control(self, text: str) -> bool:
        """Whether a text is control tokens, and nothing else that text could be taken for."""
        return bool(text.strip()) and not self._names.sub("", text).strip()


class SpelledForm:
    """What the reader of answers looks for.

    Attributes:
        form: which it is made of.
        spell: spells markers.
        section: the parts of what begins calls.
        start: the parts of what begins each call, up to its first slot.
        is_bare: whether nothing tells a call from text but what it is.
        is_plain: whether what tells a call is common in texts, so that the tool must be a known one.
        triggers: what begins calls, by its markers.
        plain_triggers: these markers, control tokens in them by their names.
        thought_start: the marker that begins a thought.
        thought_end: the one that ends it.
        fresh_text: what may come where no text has begun.
        fresh_tools: the same where tools may be called.
        within_text: what may come in a text.
        within_tools: the same where tools may be called.
        thinking_text: what may end a thought.
        thinking_tools: the same where tools may be called.
        calls: what begins calls.
    """

    def __init__(self, form: AnswerForm, control: Collection[str]) -> None:
        """Prepares all that a reader needs."""
        self.form = form
        self.spell = Speller(control)
        calls = form.calls
        lead = (
            calls.body[0] if calls.body and isinstance(calls.body[0], str) and calls.style is not Style.OBJECT else ""
        )
        self.section = self.of_section(calls.section_start)
        self.start = self.spell.chunks(calls.start + lead)
        self.is_bare = not self.section and not self.start
        thought = self._of_thought()
        self.triggers = self._triggers()
        self.is_plain = not any(map(is_special, self.triggers))
        self.plain_triggers = [named(text) for text in self.triggers]
        tools = dict.fromkeys(self.triggers, CALL)
        if self.is_bare and calls.style is Style.OBJECT:
            tools[self.spell.text(TAG)] = TAG
        ends = self._ends()
        again = {self.spell.text(form.header_end): NOTHING} if self.is_told(form.header_end) else {}
        fresh = again | ends | thought | self._content(is_fresh=True)
        self.fresh_text, self.fresh_tools = Markers(fresh), Markers(fresh | tools)
        within = {
            text: kind
            for text, kind in (ends | thought | self._content(is_fresh=False)).items()
            if is_special(text) and (kind in (NOTHING, CONTENT) or self.is_told(text))
        }
        within.pop(self.spell.text(calls.section_end.strip()), None)
        self.within_text, self.within_tools = Markers(within), Markers(within | tools)
        closing = {self.thought_end: THOUGHT_END} if self.thought_end else {}
        if is_special(form.content_start.strip()):
            closing |= self._content(is_fresh=False)
        self.thinking_text = Markers(closing)
        self.calls = Markers(dict.fromkeys(self.triggers, CALL))
        self.thinking_tools = Markers(({} if self.is_plain else tools) | closing)

    def _triggers(self) -> dict[str, "Trigger"]:
        """What begins calls, by its markers."""
        calls = self.form.calls
        first = calls.body[0]
        lead = first if isinstance(first, str) and calls.style is not Style.OBJECT else ""
        found: dict[str, Trigger] = {}
        if self.section:
            marker, rest = self._marker(calls.section_start, self.section)
            found[marker] = Trigger(rest, in_section=True)
        if self.start:
            marker, rest = self._marker(calls.start + lead, self.start)
            if not self.section or is_special(marker):
                found.setdefault(marker, Trigger(rest))
            # Some models leave out the first of several markers, as in `<tool_call>`, `<function=`.
            if len(self.start) > 1 and len(self.start[1]) > 2 and is_special(self.start[1]):
                found.setdefault(self.start[1], Trigger(self.start[2:]))
        return found

    def _marker(self, text: str, parts: Sequence[str]) -> tuple[str, list[str]]:
        """The first parts of a text that no other marker has, and the rest."""
        form, raw = self.form, self.spell.text(text.strip())
        argument = form.calls.argument
        others = [form.content_start, form.content_end, form.turn_end, form.calls.section_end, form.calls.end]
        others += [] if form.thought is None else [form.thought.opening, form.thought.end_marker]
        others += [] if argument is None else [argument.start, "".join(map(str, argument.end))]
        spelled = [self.spell.text(other) for other in others]
        marker, count = parts[0], 1
        while count < len(parts) and raw.startswith(marker + parts[count]):
            if not any(marker in other for other in spelled):
                break
            marker, count = marker + parts[count], count + 1
        return marker, list(parts[count:])

    def of_section(self, text: str) -> list[str]:
        """The parts of what stands around calls; brackets of lists are parts of their own."""
        parts = self.spell.chunks(text)
        if self.form.calls.style is not Style.OBJECT:
            return parts
        return [
            piece
            for part in parts
            for piece in (_BRACKETS.split(part) if not _CAPITALS.fullmatch(part) else [part])
            if piece
        ]

    def call_end(self) -> list[str]:
        """The parts of what ends a call, of which the first one begins no argument."""
        calls, argument = self.form.calls, self.form.calls.argument
        text = next((text for text in (calls.end, calls.section_end, self.form.turn_end) if text.strip()), "")
        parts, raw = self.spell.chunks(text), self.spell.text(text.strip())
        start = self.spell.text(argument.start.strip()) if argument is not None else ""
        while len(parts) > 1 and start.startswith(parts[0]) and raw.startswith(parts[0] + parts[1]):
            parts[:2] = [parts[0] + parts[1]]
        return parts

    def _of_thought(self) -> dict[str, str]:
        thought = self.form.thought
        self.thought_start = self.spell.text(thought.opening.strip()) if thought else ""
        self.thought_end = self.spell.text(thought.end_marker) if thought else ""
        if thought is None:
            return {}
        found = {self.thought_start: THOUGHT, self.thought_end: THOUGHT_END}
        first, *rest = self.spell.chunks(thought.opening)
        if rest and self.is_told(first):  # some models begin the marker twice
            found[first + self.thought_start] = THOUGHT
        return found

    def _content(self, *, is_fresh: bool) -> dict[str, str]:
        start = self.form.content_start
        start = start.strip() if is_special(start.strip()) else start.lstrip()
        found = {self.spell.text(start): CONTENT} if start.strip() else {}
        return found if is_fresh or is_special(start) else {}

    def _ends(self) -> dict[str, str]:
        """What is no text: ends of texts, of calls and of turns, and what begins a message."""
        form = self.form
        texts = [form.content_end, form.turn_end, form.header, form.calls.section_end]
        if form.thought is not None and form.header.strip() and form.header.strip() in form.thought.closing:
            texts.append(form.thought.end_marker)
        parts = chunks(form.turn_end)
        if len(parts) > 1:  # the last part is often the token that ends answers, which is no part of them
            texts.append(form.turn_end.strip().removesuffix(parts[-1]))
        found = {}
        for text in texts:
            if is_special(text.strip()):
                found[self.spell.text(text.strip())] = NOTHING
        return found

    def is_told(self, text: str) -> bool:
        """Whether a marker can be nothing else wherever it comes: a control token, or written as these are."""
        return "\ud800" in text or "|" in text or "｜" in text or (text[:1] == "[" and text[-1:] == "]")

    def after(self, place: int) -> list[str]:
        """What may follow a slot of a call's body: an id with what announces it may be missing."""
        calls, found = self.form.calls, []
        for at, part in enumerate(calls.body[place + 1 :], place + 1):
            if isinstance(part, str) and (parts := self.spell.chunks(part)):
                found.append(parts[0])
                if at + 1 < len(calls.body) and calls.body[at + 1] in (Slot.ID, Slot.NUMBER):
                    continue
                break
            if isinstance(part, str) and "\n" in part and calls.argument is not None:
                found.append("\n")
            if part is Slot.ARGUMENTS and calls.argument is not None:
                texts = (self.spell.chunks(calls.argument.start), self.call_end())
                return found + [parts[0] for parts in texts if parts]
        return [*found, "{"] if calls.style is Style.NAMED else found


@dataclass(frozen=True)
class Trigger:
    """What begins calls.

    Attributes:
        rest: the parts that come after the marker.
        in_section: whether it begins a section of calls.
    """

    rest: list[str]
    in_section: bool = False


def is_special(text: str) -> bool:
    """Whether a marker looks like none of a text's words."""
    return len(text) > 1 and not (_WORD.match(text[0]) or text[0].isspace()) and not text[0].isdigit()
