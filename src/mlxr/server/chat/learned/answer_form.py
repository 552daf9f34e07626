"""What is known of how a model writes its answers. The parser, the grammar and `mlxr show` come from this alone."""

from dataclasses import dataclass, field
from enum import Enum

from mlxr.server.chat.learned.lexemes import chunks


class Slot(Enum):
    """What stands between the fixed texts of a call.

    Attributes:
        NAME: the tool's name.
        ID: the call's id.
        NUMBER: the call's number in the answer.
        ARGUMENTS: the arguments.
        KEY: the name of an argument.
    """

    NAME = "NAME"
    ID = "ID"
    NUMBER = "NUMBER"
    ARGUMENTS = "ARGUMENTS"
    KEY = "KEY"


Parts = tuple[str | Slot, ...]
"""Fixed texts, with slots between them."""


class Style(Enum):
    """How a call is written.

    Attributes:
        OBJECT: one JSON object has the name and the arguments.
        NAMED: the name, then the arguments as a JSON object.
        KEYED: the name, then each argument by itself.
    """

    OBJECT = "a JSON object"
    NAMED = "a name, then a JSON object"
    KEYED = "a name, then each argument"


@dataclass(frozen=True)
class ObjectKeys:
    """The keys of a call that is one JSON object.

    Attributes:
        name: of the tool's name; None: the name is itself the key of the arguments.
        arguments: of the arguments.
        around: of objects that the two stand in, from the outermost.
        beside: other keys, such as ids.
    """

    name: str | None
    arguments: str
    around: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class ValueForm:
    """How values are written that are neither JSON nor written as arguments are.

    Attributes:
        quote: what begins a text and what ends it.
        key_quote: the same of names in an object; both empty if they stand as they are.
        colon: between a name and its value.
        comma: between values.
        words: how true, false and null are written.
    """

    quote: tuple[str, str] = ('"', '"')
    key_quote: tuple[str, str] = ('"', '"')
    colon: str = ": "
    comma: str = ", "
    words: tuple[str, str, str] = ("true", "false", "null")


@dataclass(frozen=True)
class ArgumentForm:
    """How one argument is written: `start` KEY `middle` value `end`.

    Attributes:
        start: before its name.
        middles: between its name and its value, by the type of the value: `string`, `number`, `boolean`, `null`,
            `object`, `array`; most forms have the same for each.
        end: after its value; it may have the name again.
        between: between arguments.
        quote: what begins a string and what ends it, if strings are quoted; else they stand as they are.
        has_python: whether values that are no strings are Python's.
        item: the name of a list's items, where values in values are written as arguments are.
        text: how an argument is written whose value is text, if that begins or ends otherwise.
        is_sorted: whether arguments come in the order of their names.
        values: how values are written that are not JSON, by their type: `boolean`, `null`, `object`, `array`.
    """

    start: str
    middles: tuple[tuple[str, str], ...]
    end: Parts
    between: str = ""
    quote: tuple[str, str] | None = None
    has_python: bool = False
    item: str | None = None
    text: "ArgumentForm | None" = None
    is_sorted: bool = False
    values: "tuple[tuple[str, ValueForm], ...]" = ()

    def middle(self, kind: str) -> str:
        """What stands before a value of a type."""
        return dict(self.middles)[kind]


@dataclass(frozen=True)
class CallForm:
    """How calls are written: `section_start`, calls with `between` between them, `section_end`.

    Attributes:
        style: how one call is written.
        section_start: before the first call, once.
        section_end: after the last one.
        start: before each call.
        body: a call without its beginning and end.
        end: after each call.
        between: between calls.
        first_number: of the first call, where calls are numbered.
        keys: of a JSON object.
        argument: how an argument is written.
        is_single: whether the template takes one call in an answer.
        has_python: whether the arguments of `NAMED` are a dict of Python.
        has_text: whether the arguments are a string with the text of an object in it.
    """

    style: Style
    section_start: str
    section_end: str
    start: str
    body: Parts
    end: str
    between: str
    first_number: int = 0
    keys: ObjectKeys | None = None
    argument: ArgumentForm | None = None
    is_single: bool = False
    has_python: bool = False
    has_text: bool = False


@dataclass(frozen=True)
class ThoughtForm:
    """How thoughts are written.

    Attributes:
        opening: before a thought, with white space.
        closing: between a thought and the answer, with white space and what begins the answer.
        end_marker: the part of `closing` by which the end is known.
        has_empty: whether an answer without a thought has an empty one.
    """

    opening: str
    closing: str
    end_marker: str
    has_empty: bool = False


class Origin(Enum):
    """Where a form of calls is known from.

    Attributes:
        RENDERED: from what the template renders.
        TOLD: the template tells the model in words, and leaves out calls of earlier answers, which become text.
        OURS: the template has none: the system message tells the model one of ours.
        NAMED: it is written down here.
    """

    RENDERED = "learned from the template"
    TOLD = "learned from what the template tells the model"
    OURS = "not the template's own: the system message asks for it"
    NAMED = "written by hand"


@dataclass(frozen=True)
class MessageForm:
    """What a template takes of earlier calls, and in which form.

    Attributes:
        has_text_arguments: arguments are JSON text.
        is_one_call_each: a message has at most one call.
        is_text_apart: the text of a message with calls has one of its own before it.
        has_old_roles: calls and results are JSON, with the roles `tool_calls` and `tool_results`.
        has_null_content: a message with calls and no text has null as its content.
        has_short_ids: ids have exactly nine letters and digits.
        has_thinking_parts: reasoning is a part of the content.
        has_calls_as_text: calls become part of the content.
        has_results_as_user: results become messages of the user.
        tools: the name of the variable with the tools; empty: the template has none.
    """

    has_text_arguments: bool = False
    is_one_call_each: bool = False
    is_text_apart: bool = False
    has_old_roles: bool = False
    has_null_content: bool = False
    has_short_ids: bool = False
    has_thinking_parts: bool = False
    has_calls_as_text: bool = False
    has_results_as_user: bool = False
    tools: str = "tools"


@dataclass(frozen=True)
class AnswerForm:
    """How a model writes answers.

    Attributes:
        calls: the form of calls.
        thought: the form of thoughts; None: the template knows of none.
        header: what begins a message of the assistant, which may come again within an answer.
        lead: the end of the prompt that already belongs to the answer.
        content_start: what begins the text of an answer; often nothing.
        content_end: what ends it before calls.
        turn_end: what ends an answer.
        origin: where the form of calls is known from.
        messages: what the template takes.
        has_empty_text: whether calls without a text come after an empty one.
    """

    calls: CallForm
    thought: ThoughtForm | None = None
    header: str = ""
    lead: str = ""
    content_start: str = ""
    content_end: str = ""
    turn_end: str = ""
    origin: Origin = Origin.RENDERED
    messages: MessageForm = field(default_factory=MessageForm)
    has_empty_text: bool = False

    @property
    def last_marker(self) -> str:
        """What ends an answer, if it stands nowhere within one; else empty."""
        end = self.turn_end.strip()
        return "" if any(end in text for text in (self.header, *self._within)) else end

    @property
    def header_end(self) -> str:
        """The last part of what begins a message, if it stands nowhere within an answer; else empty."""
        end = "".join(chunks(self.header)[-1:])
        return "" if any(end in text for text in (self.turn_end, *self._within)) else end

    @property
    def _within(self) -> tuple[str, ...]:
        """What stands within an answer."""
        calls, thought = self.calls, self.thought
        return (
            *(self.lead, self.content_start, self.content_end, calls.section_start, calls.section_end),
            *(calls.start, calls.end, calls.between, *(part for part in calls.body if isinstance(part, str))),
            *((thought.opening, thought.closing) if thought is not None else ()),
        )
