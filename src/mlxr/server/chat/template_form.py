"""One template of a model: how it is rendered, and the form of answers that was learned from it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from mlxr.compiler.errors import ChatTemplateError, RequestError
from mlxr.runtime.engine.reasoning import Reasoning
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.system_messages import Message
from mlxr.runtime.tokenizer.template_names import ReadNames
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.control_names import ControlNames
from mlxr.server.chat.formats.family import Beginning, TemplateFamily
from mlxr.server.chat.formats.registry import family_of
from mlxr.server.chat.learned.probe import CONTENT
from mlxr.server.chat.messages import described_tools


class TemplateForm:
    """One template: a model may have another one for conversations with tools."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, *, for_tools: bool) -> None:
        """Takes the template; nothing is rendered yet.

        Args:
            template: the model's; only one thread may use it at a time.
            tokenizer: the model's.
            for_tools: whether this is the template that is made for tools, which needs some to be rendered.
        """
        self._template = template
        self._needed: dict[str, Any] = {"tools": []} if for_tools else {}
        self._tokenizer = tokenizer
        self._family: TemplateFamily | None = None
        self._names: ControlNames | None = None
        self._read_names = ReadNames()

    @property
    def is_learned(self) -> bool:
        """Whether `family` is there without rendering anything."""
        return self._family is not None

    @property
    def family(self) -> TemplateFamily:
        """How answers are written. The first time, that is learned by rendering the template.

        Raises:
            ChatTemplateError: the template takes too long or too much.
        """
        if self._family is None:
            tokenizer = self._tokenizer
            ends = [tokenizer.token_text(token) for token in sorted(tokenizer.eos_ids)]
            has_tools = self._template.tool_use is None or "tools" in self._needed
            self._family = family_of(self._template, self._needed, tokenizer.control_tokens, ends, has_tools=has_tools)
        return self._family

    @property
    def names(self) -> ControlNames:
        """The control tokens of its prompts.

        Raises:
            ChatTemplateError: the template takes too long or too much.
        """
        if self._names is None:
            self._read_names = self._template.names(self._needed)
            self._names = ControlNames(self._tokenizer.control_tokens, self.family.spoken)
        return self._names

    def _continued_thought(self, job: ChatJob, variables: dict[str, Any]) -> str:
        """A prompt that ends within a thought."""
        family, thought = self.family, str(job.messages[-1]["reasoning_content"])
        text = self._template.render(family.messages(replace(job, messages=job.messages[:-1])), **variables)
        opening, closing = family.thinking
        if text.rstrip().endswith(closing):
            raise RequestError(
                "the last message's reasoning cannot be continued: the chat template has ended it: switch reasoning on"
            )
        if text.rstrip().endswith(opening):
            return text + thought
        return text + family.opening + thought

    def _before_text(self, job: ChatJob, variables: dict[str, Any]) -> str:
        """A prompt that ends where the last message's text begins, after its reasoning."""
        messages = (*job.messages[:-1], job.messages[-1] | {"content": CONTENT})
        adapted = self.family.messages(replace(job, messages=messages))
        text, found, _ = self._template.render(adapted, add_generation_prompt=False, **variables).rpartition(CONTENT)
        if not found:
            raise RequestError("the last message cannot be continued: the chat template leaves its text out")
        return text

    @property
    def drops_calls(self) -> bool:
        """Whether the template leaves out what was called."""
        return self.family.form.messages.has_calls_as_text

    def budget(self, reasoning: Reasoning) -> int | None:
        """Most tokens of reasoning."""
        return reasoning.budget_for(self._read_names)

    def without_effect(self, reasoning: Reasoning) -> str:
        """What of it has no effect with this template; empty: nothing."""
        return reasoning.without_effect(self._read_names, self.family.may_think(Beginning.OPEN))

    def render(self, job: ChatJob) -> str:
        """The text of a job whose messages have been checked.

        Raises:
            RequestError: the template leaves out tools, or the end that is to be continued.
            ChatTemplateError: it refuses the messages, or fails.
        """
        names = self._template.names(self._needed)
        job = replace(job, variables=names.with_budget(job.variables, job.thinking_budget))
        text = self._first_text(job)
        tells_tools = not self.family.form.messages.tools or any(name in text for name in job.tool_names)
        if job.uses_tools and not tells_tools:
            raise RequestError(
                f"tools are given, and the chat template of {self._template.source} leaves them out: use another model "
                "or template, or leave tools out"
            )
        return text

    def _first_text(self, job: ChatJob) -> str:
        """What the template makes of the first form of messages and tools that it takes."""
        failure: ChatTemplateError | None = None
        for adapted in self.family.adapted_jobs(job):
            try:
                return self._text(job, adapted, self._needed | self.family.variables(job))
            except ChatTemplateError as error:
                if error.__cause__ is not None:  # it took too long or too much
                    raise
                failure = failure or error
        if job.uses_tools and (described := described_tools(job.tools)) != job.tools:
            with suppress(ChatTemplateError):  # some templates read a description that is not there
                return self._first_text(replace(job, tools=described))
        assert failure is not None, "there is at least one form"
        raise failure

    def _text(self, job: ChatJob, messages: Sequence[Message], variables: dict[str, Any]) -> str:
        if not job.continue_final:
            return self._template.render(messages, add_generation_prompt=job.begins_answer, **variables)
        if job.continues_thought:
            return self._continued_thought(job, variables)
        if not job.continues_text:
            return self._before_text(job, variables)
        # As transformers does: all that the template writes after the last message is cut off.
        text, last = (
            self._template.render(messages, add_generation_prompt=False, **variables),
            job.messages[-1]["content"],
        )
        for content in (last, last.strip()):
            if (position := text.rfind(content)) >= 0:
                return text[: position + len(content)]
        raise RequestError("the last message cannot be continued: the chat template changes its text")


def has_calls(job: ChatJob) -> bool:
    """Whether tools were called before."""
    return any(message["role"] == "tool" or "tool_calls" in message for message in job.messages)
