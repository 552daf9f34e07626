"""gpt-oss: messages in channels. `analysis` is reasoning, `final` the answer, and `commentary` has tool calls.

A call: `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`.
"""

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.sampling import ThoughtLimit
from mlxr.server.chat.answer_grammar import ANYTHING, AnswerGrammar
from mlxr.server.chat.answer_reader import AnswerReader, Reading
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import ContentDelta, ReasoningDelta
from mlxr.server.chat.formats.family import Beginning, TemplateFamily
from mlxr.server.chat.learned.answer_form import AnswerForm
from mlxr.server.chat.split_messages import one_call_each

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_PEOPLE = ("assistant", "user", "all")
_SYSTEM = ("system", "developer")


class Harmony(TemplateFamily):
    """Its template takes one call in a message, `thinking`, and instructions at the beginning alone."""

    has_developer: ClassVar[bool] = True
    thinking = (f"{_CHANNEL}analysis{_MESSAGE}", _ENDS[0])

    @property
    def spoken(self) -> tuple[str, ...]:
        """See `TemplateFamily`. The markers of its thinking also end messages."""
        return ()

    @property
    def last_marker(self) -> str:
        """See `TemplateFamily`. What ends messages ends thoughts, too."""
        return ""

    @staticmethod
    def matches(form: AnswerForm) -> bool:
        """Whether the template writes answers into a channel."""
        return f"{_CHANNEL}final{_MESSAGE}" in form.content_start

    def messages(self, job: ChatJob) -> Sequence[dict[str, Any]]:
        """See `TemplateFamily`."""
        messages = list(job.messages)
        count = next((i for i, message in enumerate(messages) if message["role"] not in _SYSTEM), len(messages))
        if count > 1:
            joined = "\n\n".join(message["content"] for message in messages[:count])
            messages[:count] = [{"role": "developer", "content": joined}]
        return [adapted for message in one_call_each(messages) for adapted in _adapted(message)]

    def __init__(self, form: AnswerForm) -> None:
        """See `TemplateFamily`."""
        super().__init__(form)
        self.thinks, self.thinking = True, type(self).thinking
        self._opening = self.thinking[0]

    def thought_limit(self, tokens: int, job: ChatJob, beginning: Beginning) -> ThoughtLimit:
        """See `TemplateFamily`. Where tools may be called, the model chooses the channel after its first thought."""
        del beginning
        again = f"{_ENDS[0]}{_START}assistant{_CHANNEL}"
        final = f"{again}final{_MESSAGE}"
        if job.uses_tools:
            last = f"{again}commentary" if job.must_call else final
            return ThoughtLimit(tokens, self.thinking[0], again, _ENDS[0], reopens=True, final_closing=last)
        return ThoughtLimit(tokens, self.thinking[0], final, _ENDS[0], reopens=True)

    def beginning(self, prompt: str, job: ChatJob) -> Beginning:
        """See `TemplateFamily`."""
        del prompt
        return super().beginning("", job) if job.continue_final else Beginning.OPEN

    def read(self, reader: AnswerReader, job: ChatJob, beginning: Beginning) -> Reading:
        """See `TemplateFamily`."""
        is_body, is_opened = beginning is not Beginning.OPEN, beginning is Beginning.THINKING
        header, before = f"{_CHANNEL}{'analysis' if beginning is Beginning.THINKING else 'final'}", ""
        while True:
            if not is_body:
                reader.mark()
                if (yield from reader.each_until(lambda text: None, [_MESSAGE])) is None:
                    reader.emit(ContentDelta, _rest_of_header(reader.since_mark()))
                    return
                header = reader.since_mark()
            is_body = False
            channel, recipient = _CHANNEL_NAME.findall(header)[-1:], _RECIPIENT.search(header.replace(_CHANNEL, " "))
            if recipient and recipient[1] not in _PEOPLE and job.uses_tools:
                reader.start_call(recipient[1].removeprefix("functions."))
                if (yield from reader.next_sign()) == "{":
                    yield from reader.json_value(reader.emit_arguments)
                end = yield from reader.each_until(reader.emit_arguments, [*_ENDS, _START])
            else:
                is_thought = channel == ["analysis"]
                kind = ReasoningDelta if job.reasoning and is_thought else ContentDelta
                is_within = is_thought and not job.reasoning  # of the content: then with its markers
                if is_within:
                    reader.emit(ContentDelta, "" if is_opened else self.thinking[0])
                elif before == kind.__name__:
                    reader.emit(kind, "\n")
                before, is_opened = "" if is_within else kind.__name__, False
                end = yield from reader.text_until(kind, [*_ENDS, _START], exact=True)
                if is_within and end is not None:
                    reader.emit(ContentDelta, self.thinking[1])
            if end is None:
                return

    def start(self, grammar: AnswerGrammar, job: ChatJob, beginning: Beginning) -> str:
        """See `TemplateFamily`."""
        if beginning is not Beginning.OPEN:
            answer = grammar.answer(job.sampling)
            if answer is None or job.uses_tools:
                raise RequestError("continue_final with gpt-oss takes no tools: leave them out, or end with a question")
            return answer
        channel, message = grammar.marker(_CHANNEL), grammar.marker(_MESSAGE)
        again = f'{grammar.marker(_START)} "assistant"'
        text = grammar.until("section", _ENDS[0])
        names = '("analysis" | "commentary")' if job.uses_tools and not job.must_call else '"analysis"'
        sections = f"({channel} {names} {message} {text} {again})*"
        options = []
        for name, rule in self.arguments(grammar, job) if job.uses_tools else ():
            constrain = f'" " ({grammar.marker(_CONSTRAIN)})? "json"'
            recipient = grammar.text(f" to=functions.{name}")
            options.append(f'{channel} "commentary" {recipient} {constrain} {message} {rule}')
            options.append(f'{recipient} {channel} "commentary" {constrain} {message} {rule}')
        if not job.must_call:
            answer = grammar.answer(job.sampling) or grammar.add("TEXT", ANYTHING)
            options.append(f'{channel} "final" {message} {answer}')
        return f"{sections} ({' | '.join(options)})"


def _adapted(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A message as the template takes it: it may not have thinking, text and a call at once."""
    thinking = message.get("reasoning_content")
    if message["role"] != "assistant" or not thinking:
        return [message]
    bare = {key: value for key, value in message.items() if key != "reasoning_content"}
    if not message.get("tool_calls"):
        return [bare | {"thinking": thinking}]
    text = f"{thinking}\n\n{message['content']}" if message["content"] else thinking
    return [bare | {"thinking": text, "content": ""}]


def _rest_of_header(header: str) -> str:
    """What is left at the end of an answer where a header was expected: text, if it is none."""
    return "" if not header.strip() or header.strip().startswith((_CHANNEL, _START)) else header
