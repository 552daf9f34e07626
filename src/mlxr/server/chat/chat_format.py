"""How one model is spoken to: from a `ChatJob` to a prompt, to options of the engine, and from its answer to deltas."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from mlxr.compiler.errors import ChatTemplateError, EngineError, RequestError
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.engine.too_long import check_length
from mlxr.runtime.tokenizer.chat_template import ChatTemplate, Message
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.server.chat.answer_grammar import AnswerGrammar
from mlxr.server.chat.answer_parser import AnswerParser
from mlxr.server.chat.answer_reader import AnswerReader
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.control_names import ControlNames
from mlxr.server.chat.formats.family import Beginning
from mlxr.server.chat.formats.registry import family_of
from mlxr.server.chat.messages import checked_messages, plain_tools, with_text_arguments

_TAIL = 16
"""Tokens at the end of a prompt that may open or close the model's thinking."""
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
_INSTRUCTIONS = ("system", "developer")
_OF_TEMPLATE = ("messages", "add_generation_prompt", "tools", "xml_tools", "bos_token", "eos_token")


class ChatFormat:
    """The format of one model. Any number of tasks may use it; it owns the template."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, context: int | None = None) -> None:
        """Finds the family that the template belongs to.

        Args:
            template: the model's; it is closed with this.
            tokenizer: the model's.
            context: most tokens of a sequence, by which texts that are far too long are refused early.
        """
        self._template, self._tokenizer, self._context = template, tokenizer, context
        self._family = family_of(template.text)
        self._names = ControlNames(tokenizer.control_tokens, self._family.spoken)
        self._is_closed = False
        self._argument_form: _Arguments | None = None
        # A template's process serves one at a time: so does this thread.
        self._thread = ThreadPoolExecutor(1, "mlxr-template")

    @property
    def family(self) -> str:
        """The name of the family: `Hermes`, `Llama3` ...; `Plain` if it is not known."""
        return type(self._family).__name__

    @property
    def takes_tools(self) -> bool:
        """Whether its tool calls are understood."""
        return self._family.takes_tools

    @property
    def thinks(self) -> bool:
        """Whether its template speaks of reasoning."""
        return self._family.thinks

    async def prompt(self, job: ChatJob) -> list[int]:
        """The tokens that an answer continues.

        Raises:
            RequestError: messages or tools that cannot be used.
            PromptTooLongError: far more text than the context takes.
            ChatTemplateError: the template refuses the messages, or fails.
            EngineError: this has been closed.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._prompt, job)
        except RuntimeError as error:
            if self._is_closed:
                raise EngineError("the model has been unloaded: ask again") from error
            raise

    def constrained(self, job: ChatJob, prompt: Sequence[int]) -> Sampling:
        """The options for the engine, with the constraint that the tools ask for.

        A constraint of the request itself holds for the answer, after the model's reasoning.

        Args:
            job: what is asked.
            prompt: its tokens, which say where the answer begins: perhaps inside the model's reasoning.

        Raises:
            RequestError: a constraint that cannot be combined with tools or reasoning.
        """
        sampling = job.sampling
        is_constrained = any(
            option is not None for option in (sampling.json_schema, sampling.regex, sampling.choice, sampling.grammar)
        )
        beginning = self._beginning(job, prompt)
        thinks = self._family.may_think(beginning)
        if not (job.constrains_calls or (is_constrained and (thinks or job.uses_tools))):
            return sampling
        if sampling.grammar is not None and not job.must_call:
            if not thinks and not job.constrains_calls:
                return sampling
            raise RequestError(
                "grammar cannot be combined with tools, or with a model that thinks first: use json_schema, regex or "
                "choice, tool_choice none, or switch reasoning off"
            )
        grammar = AnswerGrammar(self._tokenizer.control_tokens)
        start = self._family.start(grammar, job, beginning)
        return replace(sampling, json_schema=None, regex=None, choice=None, grammar=grammar.written(start))

    def parser(self, job: ChatJob, prompt: Sequence[int]) -> AnswerParser:
        """The parser of one answer; arguments as for `constrained`."""
        reader = AnswerReader(self._tokenizer.control_tokens)
        reading = self._family.read(reader, job, self._beginning(job, prompt))
        return AnswerParser(self._tokenizer, reader, reading)

    def close(self) -> None:
        """Ends the template's process. No prompt can be made afterwards."""
        self._is_closed = True
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._template.close()

    def _beginning(self, job: ChatJob, prompt: Sequence[int]) -> Beginning:
        pieces = []
        for token in prompt[-_TAIL:]:
            is_control = token in self._tokenizer.control_ids
            pieces.append(self._tokenizer.token_text(token).encode() if is_control else self._tokenizer.bytes_of(token))
        return self._family.beginning(b"".join(pieces).decode("utf-8", "replace"), job)

    # In the template's thread.

    def _prompt(self, job: ChatJob) -> list[int]:
        try:
            marked = self._rendered(self._marked(self._checked(job)))
        except RecursionError as error:
            raise RequestError("messages or tools are nested too deeply: write them flatter") from error
        except (ChatTemplateError, RequestError) as error:
            raise type(error)(self._names.unmarked(str(error))) from error
        text = self._names.unmarked(marked)
        if self._context is not None:
            check_length(text, self._tokenizer, self._context)
        # The template itself writes the BOS, and the names of control tokens in its own text mean these tokens.
        if text == marked:
            return self._tokenizer.encode(text, add_special=False, parse_special=True)
        return self._tokenizer.encode_parts(self._names.split(marked))

    def _marked(self, job: ChatJob) -> ChatJob:
        """The job with marks in names of control tokens."""
        names = self._names
        return replace(
            job,
            messages=tuple(names.marked_message(message) for message in job.messages),
            tools=tuple(names.marked(job.tools)),
            variables=names.marked(job.variables),
        )

    def _checked(self, job: ChatJob) -> ChatJob:
        """The job with messages in one form.

        Raises:
            RequestError: something in it that cannot be used.
        """
        messages = checked_messages(job.messages)
        for message in messages:
            if message["role"] == "developer" and not self._family.has_developer:
                message["role"] = "system"
        if job.uses_tools and not self._family.takes_tools:
            raise RequestError(
                f"tools are given, and the chat template of {self._template.source} has no form of tool calls that is "
                "known: use another model, or leave tools out"
            )
        if job.continue_final and (messages[-1]["role"] != "assistant" or not messages[-1]["content"].strip()):
            raise RequestError("the last message is to be continued: it must be the assistant's, and have text")
        for name in _OF_TEMPLATE:
            if name in job.variables:
                raise RequestError(f"{name} is not a variable of the template's own: leave it out")
        return replace(job, messages=tuple(messages), tools=plain_tools(job.tools))

    def _rendered(self, job: ChatJob) -> str:
        messages, variables = self._family.messages(job), self._family.variables(job)
        if any(message["role"] == "tool" or "tool_calls" in message for message in job.messages):
            if self._argument_form is None:
                self._argument_form = self._find_argument_form()
            if self._argument_form is _Arguments.DROPPED:
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
        for number, message in enumerate(job.messages):
            if number and message["role"] in _INSTRUCTIONS and message["content"].strip() not in text:
                raise RequestError(
                    f"messages[{number}] is a {message['role']} message, which the chat template of "
                    f"{self._template.source} leaves out there: put it first"
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

    def _find_argument_form(self) -> "_Arguments":
        """In which form the template takes the arguments of calls, by trying."""
        messages = self._family.messages(ChatJob(_PROBE, Sampling()))
        for form in (_Arguments.DICTS, _Arguments.TEXT):
            tried = messages if form is _Arguments.DICTS else with_text_arguments(messages)
            try:
                text = self._template.render(tried)
            except ChatTemplateError:
                continue
            if f"'{_KEY}'" not in text:  # Python's form of a dict
                return form if all(part in text for part in (_TOOL, _KEY, _RESULT)) else _Arguments.DROPPED
        return _Arguments.DICTS  # then the template says itself what it wants


class _Arguments(Enum):
    """What a template does with the arguments of calls."""

    DICTS = auto()
    TEXT = auto()
    DROPPED = auto()
