"""What is known of one template of a model: its family, and what rendering a marked conversation shows of it.

Here is the place for more that a template shows when it is rendered, such as the form of its tool calls.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from mlxr.compiler.errors import ChatTemplateError, RequestError
from mlxr.runtime.engine.reasoning import Reasoning
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.system_messages import Message
from mlxr.runtime.tokenizer.template_names import ReadNames
from mlxr.runtime.tokenizer.thinking_form import find_thinking
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.control_names import ControlNames
from mlxr.server.chat.formats.family import Beginning
from mlxr.server.chat.formats.registry import family_of
from mlxr.server.chat.messages import with_text_arguments

_TOOL, _KEY, _RESULT = "mlxr_tool", "mlxr_key", "mlxr_result"
_PROBE = (
    {"role": "user", "content": "x"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "123456789", "type": "function", "function": {"name": _TOOL, "arguments": {_KEY: "x"}}}],
    },
    {"role": "tool", "content": _RESULT, "tool_call_id": "123456789", "name": _TOOL},
)
"""A conversation that shows what a template does with calls."""


class TemplateForm:
    """One template: a model may have another one for conversations with tools.

    Attributes:
        family: how answers are written.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, *, for_tools: bool) -> None:
        """Finds the family; nothing is rendered yet.

        Args:
            template: the model's; only one thread may use it at a time.
            tokenizer: the model's.
            for_tools: whether this is the template that is made for tools, which needs some to be rendered.
        """
        self._template = template
        self._needed: dict[str, Any] = {"tools": []} if for_tools else {}
        self.family = family_of(template.program(self._needed))
        self._tokenizer = tokenizer
        self._names: ControlNames | None = None
        self._read_names = ReadNames()
        self._arguments: _Arguments | None = None

    @property
    def names(self) -> ControlNames:
        """The control tokens of its prompts. The first time, it is found out how the template writes thoughts.

        Raises:
            ChatTemplateError: the template takes too long or too much.
        """
        if self._names is None:
            self._read_names = self._template.names(self._needed)
            self.family.learn(find_thinking(self._template, self._needed))
            self._names = ControlNames(self._tokenizer.control_tokens, self.family.spoken)
        return self._names

    @property
    def drops_calls(self) -> bool:
        """Whether the template leaves out what was called."""
        return self._argument_form is _Arguments.DROPPED

    def budget(self, reasoning: Reasoning) -> int | None:
        """Most tokens of reasoning."""
        return reasoning.budget_for(self._read_names)

    def without_effect(self, reasoning: Reasoning) -> str:
        """What of it has no effect with this template; empty: nothing."""
        return reasoning.without_effect(self._read_names, self.family.may_think(Beginning.OPEN))

    def render(self, job: ChatJob) -> str:
        """The text of a job whose messages have been checked.

        Raises:
            RequestError: the template leaves out tools, calls, or the end that is to be continued.
            ChatTemplateError: it refuses the messages, or fails.
        """
        names = self._template.names(self._needed)
        job = replace(job, variables=names.with_budget(job.variables, job.thinking_budget))
        messages, variables = self.family.messages(job), self._needed | self.family.variables(job)
        if has_calls(job):
            if self.drops_calls:
                raise RequestError(
                    f"messages have tool calls, which the chat template of {self._template.source} leaves out: use "
                    "another model or template"
                )
            if self._argument_form is _Arguments.TEXT:
                messages = with_text_arguments(messages)
        text = self._text(job, messages, variables)
        if job.uses_tools and not any(name in text for name in job.tool_names):
            raise RequestError(
                f"tools are given, and the chat template of {self._template.source} leaves them out: use another model "
                "or template, or leave tools out"
            )
        return text

    def _text(self, job: ChatJob, messages: Sequence[Message], variables: dict[str, Any]) -> str:
        if not job.continue_final:
            return self._template.render(messages, **variables)
        # As transformers does: all that the template writes after the last message is cut off.
        text, last = self._template.render(messages, add_generation_prompt=False, **variables), messages[-1]["content"]
        for content in (last, last.strip()):
            if (position := text.rfind(content)) >= 0:
                return text[: position + len(content)]
        raise RequestError("the last message cannot be continued: the chat template changes its text")

    @property
    def _argument_form(self) -> "_Arguments":
        """In which form the template takes the arguments of calls, by trying."""
        if self._arguments is None:
            self._arguments = self._find_argument_form()
        return self._arguments

    def _find_argument_form(self) -> "_Arguments":
        messages = self.family.messages(ChatJob(_PROBE, Sampling()))
        for form in (_Arguments.DICTS, _Arguments.TEXT):
            tried = messages if form is _Arguments.DICTS else with_text_arguments(messages)
            try:
                text = self._template.render(tried, **self._needed)
            except ChatTemplateError:
                continue
            if f"'{_KEY}'" not in text:  # Python's form of a dict
                return form if all(part in text for part in (_TOOL, _KEY, _RESULT)) else _Arguments.DROPPED
        return _Arguments.DICTS  # then the template says itself what it wants


def has_calls(job: ChatJob) -> bool:
    """Whether tools were called before."""
    return any(message["role"] == "tool" or "tool_calls" in message for message in job.messages)


class _Arguments(Enum):
    """What a template does with the arguments of calls."""

    DICTS = auto()
    TEXT = auto()
    DROPPED = auto()
