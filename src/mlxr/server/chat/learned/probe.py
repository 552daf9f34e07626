"""Renders conversations whose every word is known, in the form of messages that a template takes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from mlxr.compiler.errors import ChatTemplateError
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.server.chat.learned.adapt_messages import adapted, tool_variables
from mlxr.server.chat.learned.answer_form import MessageForm

QUESTION, CONTENT, THOUGHT, RESULT = "qaquestionqa", "qacontentqa", "qathoughtqa", "qaresultqa"
NAMES = ("qatooloneqa", "qatooltwoqa", "qatoolsixqa")
IDS = ("qaid0aaa1", "qaid0bbb2", "qaid0ccc3")
KEYS = ("qakeyaqa", "qakeybqa")
VALUE, OTHER_VALUE = "qavaluezqa", "qavalueyqa"
TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "qa description",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "description": "qa text"} for key in KEYS},
                "required": [KEYS[0]],
            },
        },
    }
    for name in NAMES
)
_ON, _OFF = {"enable_thinking": True}, {"enable_thinking": False}


def a_call(number: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A call of the tool of this number."""
    function = {"name": NAMES[number], "arguments": dict(arguments)}
    return {"id": IDS[number], "type": "function", "function": function}


@dataclass
class Probe:
    """One template, whose renderings are kept.

    Attributes:
        template: rendered; it must not be in use.
        variables: what it needs besides messages.
        ends: names of tokens that end an answer.
        form: of messages.
        header: what begins the assistant's messages.
        empty: the markers of a thought, which stand there even if there is none.
        tail: what the template writes after every conversation, beyond the end of the last message.
        tools: the variables by which tools may be told.
    """

    template: ChatTemplate
    variables: Mapping[str, Any]
    ends: Sequence[str] = ()
    form: MessageForm = field(default_factory=MessageForm)
    header: str = ""
    empty: tuple[str, str] = ("", "")
    tail: str = ""
    tools: tuple[str, ...] = ("tools", "xml_tools")

    def answer(self, calls: Sequence[dict[str, Any]] = (), content: str = "") -> str | None:
        """As `turn`, without the header, and without a thought that is empty."""
        text = self.turn(calls, content)
        return None if text is None else self.without_thought(text.removeprefix(self.header))

    def without_thought(self, text: str) -> str:
        """The text of an answer without an empty thought at its beginning."""
        opening, closing = self.empty
        rest = text.lstrip().removeprefix(opening).lstrip()
        return rest.removeprefix(closing).lstrip() if closing and rest.startswith(closing) else text

    def render(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool = False, thinks: bool = True) -> str | None:
        """What the template writes after the question, without the tail; None if it refuses the conversation.

        Raises:
            ChatTemplateError: it takes too long or too much.
        """
        variables = dict(self.variables) | (_ON if thinks else _OFF) | tool_variables(TOOLS, self.form)
        question = {"role": "user", "content": QUESTION}
        try:
            text = self.template.render(adapted([question, *messages], self.form), prompt, **variables)
        except ChatTemplateError as error:
            if error.__cause__ is not None:
                raise
            return None
        text = text[text.rfind(QUESTION) + len(QUESTION) :] if QUESTION in text else text
        before, _, after = text.rpartition(self.tail) if self.tail else ("", "", text)
        return before + after

    def instructions(self) -> str:
        """What the template writes before the question.

        Raises:
            ChatTemplateError: it takes too long or too much.
        """
        variables = dict(self.variables) | _ON | tool_variables(TOOLS, self.form)
        try:
            text = self.template.render([{"role": "user", "content": QUESTION}], True, **variables)
        except ChatTemplateError as error:
            if error.__cause__ is not None:
                raise
            return ""
        return text[: text.rfind(QUESTION)]

    def turn(
        self, calls: Sequence[dict[str, Any]] = (), content: str = "", thought: str = "", *, thinks: bool = True
    ) -> str | None:
        """A message of the assistant, up to the end of the conversation; see `render`."""
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = list(calls)
        if thought:
            message["reasoning_content"] = thought
        return self.render([message], thinks=thinks)

    def finds_form(self) -> bool:
        """Finds the form of messages in which the template writes calls as they were; whether there is one."""
        arguments = {KEYS[0]: VALUE}
        quoted = f"'{KEYS[0]}': '{VALUE}'"
        found: tuple[int, MessageForm] | None = None
        forms = [
            MessageForm(has_text_arguments=has_text, has_old_roles=has_old, has_null_content=is_null, tools=tools)
            for has_old, is_null, has_text, tools in product((False, True), (False, True), (False, True), self.tools)
            if not (has_old and is_null)
        ]
        for self.form in forms:
            text = self.turn([a_call(0, arguments)])
            if text is None or not _in_order(text, NAMES[0]) or KEYS[0] not in text or VALUE not in text:
                continue
            faults = 8 * self.form.has_old_roles + 4 * self.form.has_null_content + (quoted in text)
            faults += 2 * _num_escapes(text) + 3 * (f"'{as_json(arguments)}'" in text)
            if found is None or faults < found[0]:
                found = faults, self.form
        if found is None:
            self.form = MessageForm(tools=self.tools[0])
            return False
        self.form = found[1]
        if self.form.has_old_roles and not self._has_role():
            self.form = MessageForm(tools=self.tools[0])
            return False
        several = self.turn([a_call(number, arguments) for number in range(3)])
        if several is None or not _in_order(several, *NAMES):
            self.form = replace(self.form, is_one_call_each=True)
        self._finds_rest(arguments)
        return True

    def _has_role(self) -> bool:
        """Whether the template writes the old role of calls otherwise than any other that it does not know."""
        message = adapted([{"role": "assistant", "content": "", "tool_calls": [a_call(0, {})]}], self.form)[-1]
        texts = [self.render([message | {"role": role}]) for role in ("tool_calls", "qarole")]
        return texts[0] is not None and texts[0].replace("tool_calls", "qarole") != texts[1]

    def _finds_rest(self, arguments: Mapping[str, Any]) -> None:
        call = a_call(0, arguments)
        beside = self.turn([call], CONTENT)
        if beside is None or CONTENT not in beside or NAMES[0] not in beside:
            apart = replace(self.form, is_text_apart=True)
            text = replace(self, form=apart).turn([call], CONTENT)
            if text is not None and CONTENT in text and NAMES[0] in text:
                self.form = apart
        long_id = call | {"id": "call_qa0123456789abcdef"}
        if self.turn([long_id]) is None:
            self.form = replace(self.form, has_short_ids=True)
        result = {"role": "tool", "content": RESULT, "tool_call_id": IDS[0], "name": NAMES[0]}
        text = self.render([{"role": "assistant", "content": "", "tool_calls": [call]}, result], prompt=True)
        if text is None or RESULT not in text:
            self.form = replace(self.form, has_results_as_user=True)
        thought = self.turn(content=CONTENT, thought=THOUGHT)
        if thought is None or THOUGHT not in thought:
            parts = replace(self.form, has_thinking_parts=True)
            text = replace(self, form=parts).turn(content=CONTENT, thought=THOUGHT)
            if text is not None and THOUGHT in text and CONTENT in text and not _is_quoted(text):
                self.form = parts


def _in_order(text: str, *names: str) -> bool:
    places = [text.find(name) for name in names]
    return places[0] >= 0 and places == sorted(places) and -1 not in places


def _num_escapes(text: str) -> int:
    """How many backslashes stand before the quote of an argument's name."""
    before = text[: text.find(KEYS[0])].removesuffix('"')
    return len(before) - len(before.rstrip("\\"))


def _is_quoted(text: str) -> bool:
    return any(f"{quote}{THOUGHT}{quote}" in text for quote in "'\"")


def as_json(value: Any) -> str:
    """JSON as templates write it."""
    return json.dumps(value, ensure_ascii=False)
