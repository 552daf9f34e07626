"""How one model is spoken to: from a `ChatJob` to a prompt, to options of the engine, and from its answer to deltas."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from mlxr.compiler.errors import ChatTemplateError, RequestError
from mlxr.runtime.engine.errors import EngineError
from mlxr.runtime.engine.reasoning import NO_REASONING, Reasoning
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.engine.too_long import check_length
from mlxr.runtime.memory.fitting_arena import ContextLimit
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.server.chat.answer_grammar import AnswerGrammar
from mlxr.server.chat.answer_parser import AnswerParser
from mlxr.server.chat.answer_reader import AnswerReader
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.control_names import ControlNames
from mlxr.server.chat.formats.family import Beginning, TemplateFamily
from mlxr.server.chat.formats.registry import form_name
from mlxr.server.chat.learned.answer_form import AnswerForm, Origin
from mlxr.server.chat.messages import checked_messages, plain_tools
from mlxr.server.chat.template_form import TemplateForm, has_calls
from mlxr.server.request_record import note_unenforced

_LOG = logging.getLogger("mlxr.server")
_TAIL = 32
"""Tokens at the end of a prompt that may open or close the model's thinking."""
_OF_TEMPLATE = ("messages", "add_generation_prompt", "tools", "xml_tools", "bos_token", "eos_token")


class ChatFormat:
    """The format of one model. Any number of tasks may use it; it owns the template."""

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        limit: ContextLimit | None = None,
        defaults: Reasoning = NO_REASONING,
    ) -> None:
        """Finds the family that the template belongs to.

        Args:
            template: the model's; it is closed with this.
            tokenizer: the model's.
            limit: of the context, by which texts that are far too long are refused early.
            defaults: hold where a job says nothing else.
        """
        self._defaults = defaults
        self._template, self._tokenizer, self._limit = template, tokenizer, limit
        self._plain = self._with_tools = TemplateForm(template, tokenizer, for_tools=False)
        if template.tool_use is not None:
            self._with_tools = TemplateForm(template, tokenizer, for_tools=True)
        self._is_closed = False
        self._told: set[str] = set()  # what was logged, so that it is logged once
        # A template's process serves one at a time: so does this thread.
        self._thread = ThreadPoolExecutor(1, "mlxr-template", initializer=self._began)
        self._thread_id = 0

    @property
    def form(self) -> AnswerForm:
        """How the model writes answers where tools are given; the first time, its template is rendered for that.

        Raises:
            ChatTemplateError: the template takes too long or too much.
            EngineError: this has been closed.
        """
        return self._learned(self._with_tools).form

    @property
    def family(self) -> str:
        """The form in a few words."""
        return form_name(self._learned(self._with_tools))

    @property
    def takes_tools(self) -> bool:
        """Whether the template has a form of calls; else the system message asks for one."""
        return self.form.origin is not Origin.OURS

    @property
    def thinks(self) -> bool:
        """Whether its template knows of reasoning."""
        return self._learned(self._plain).thinks

    def _began(self) -> None:
        self._thread_id = threading.get_ident()

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
        """The options for the engine, with the constraint that the tools ask for, and the limit on reasoning.

        A constraint of the request itself holds for the answer, after the model's reasoning.

        Args:
            job: what is asked.
            prompt: its tokens, which say where the answer begins: perhaps inside the model's reasoning.

        Raises:
            RequestError: a constraint that cannot be combined with tools or reasoning.
        """
        family, beginning = self._family(job), self._beginning(job, prompt)
        sampling = self._ending(job.sampling, family)
        thinks = family.may_think(beginning)
        budget = self._form(job).budget(self._reasoning(job))
        if thinks and budget is not None:
            sampling = replace(sampling, thought=family.thought_limit(budget, job, beginning))
        if not (job.constrains_calls or (sampling.is_constrained and (thinks or job.uses_tools))):
            return sampling
        if sampling.grammar is not None and not job.must_call:
            if not thinks and not job.constrains_calls:
                return sampling
            raise RequestError(
                "grammar cannot be combined with tools, or with a model that thinks first: use json_schema, regex or "
                "choice, tool_choice none, or switch reasoning off"
            )
        if job.constrains_calls:
            for tool in job.tools:
                if not tool["function"].get("strict"):
                    note_unenforced(f"tool {tool['function']['name']}", tool["function"].get("parameters") or {})
        grammar = AnswerGrammar(self._tokenizer.control_tokens)
        start = family.start(grammar, job, beginning)
        return replace(sampling, json_schema=None, regex=None, choice=None, grammar=grammar.written(start))

    def _ending(self, sampling: Sampling, family: TemplateFamily) -> Sampling:
        """The options, by which an answer also ends where the template ends one, if the files do not say so."""
        end = self._tokenizer.control_tokens.get(family.last_marker)
        if end is None or end in self._tokenizer.eos_ids or sampling.ignore_eos:
            return sampling
        return replace(sampling, stop_tokens=(*sampling.stop_tokens, end))

    def parser(self, job: ChatJob, prompt: Sequence[int]) -> AnswerParser:
        """The parser of one answer; arguments as for `constrained`."""
        reader = AnswerReader(self._tokenizer.control_tokens)
        reading = self._family(job).read(reader, job, self._beginning(job, prompt))
        return AnswerParser(self._tokenizer, reader, reading)

    def close(self) -> None:
        """Ends the template's process. No prompt can be made afterwards."""
        self._is_closed = True
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._template.close()

    def _form(self, job: ChatJob) -> TemplateForm:
        return self._with_tools if job.uses_tools else self._plain

    def _family(self, job: ChatJob) -> TemplateFamily:
        return self._learned(self._form(job))

    def _learned(self, form: TemplateForm) -> TemplateFamily:
        """The family of a template, which its own thread must find."""
        if form.is_learned or threading.get_ident() == self._thread_id:
            return form.family
        try:
            return self._thread.submit(lambda: form.family).result()
        except RuntimeError as error:
            if self._is_closed:
                raise EngineError("the model has been unloaded: ask again") from error
            raise

    def _reasoning(self, job: ChatJob) -> Reasoning:
        return Reasoning(job.variables, job.thinking_budget).over(self._defaults)

    def _with_defaults(self, job: ChatJob) -> ChatJob:
        reasoning = self._reasoning(job)
        return replace(job, variables=reasoning.variables, thinking_budget=reasoning.budget)

    def _beginning(self, job: ChatJob, prompt: Sequence[int]) -> Beginning:
        pieces = []
        for token in prompt[-_TAIL:]:
            is_control = token in self._tokenizer.control_ids
            pieces.append(self._tokenizer.token_text(token).encode() if is_control else self._tokenizer.bytes_of(token))
        return self._family(job).beginning(b"".join(pieces).decode("utf-8", "replace"), job)

    # In the template's thread.

    def _prompt(self, job: ChatJob) -> list[int]:
        form = self._form(job)
        names = form.names
        try:
            job = self._with_defaults(self._checked(job))
            if form is self._plain is not self._with_tools and has_calls(job) and form.drops_calls:
                form = self._with_tools  # what was called must be told, whether or not more may be
                names = form.names
            if job.uses_tools and not form.family.form.messages.tools:
                self._tell(
                    "the chat template does not tell the model of tools: the system message does, and asks for calls "
                    f"as {form_name(form.family)}"
                )
            if job.continues_thought and not form.family.thinks:
                self._tell("the chat template begins no thought: one that is continued is written within <think>")
            self._tell(form.without_effect(self._reasoning(job)))
            marked = form.render(_marked(job, names))
        except RecursionError as error:
            raise RequestError("messages or tools are nested too deeply: write them flatter") from error
        except (ChatTemplateError, RequestError) as error:
            raise type(error)(names.unmarked(str(error))) from error
        text = names.unmarked(marked)
        if self._limit is not None:
            check_length(text, self._tokenizer, self._limit)
        # The template itself writes the BOS, and the names of control tokens in its own text mean these tokens.
        if text == marked:
            return self._tokenizer.encode(text, add_special=False, parse_special=True)
        return self._tokenizer.encode_parts(names.split(marked))

    def _tell(self, note: str) -> None:
        if note and note not in self._told:
            self._told.add(note)
            _LOG.warning("%s: %s", self._template.source, note)

    def _checked(self, job: ChatJob) -> ChatJob:
        """The job with messages in one form.

        Raises:
            RequestError: something in it that cannot be used.
        """
        messages = checked_messages(job.messages)
        for message in messages:
            if message["role"] == "developer" and not self._family(job).has_developer:
                message["role"] = "system"
        last = messages[-1]
        has_text = bool(last["content"].strip() or last.get("reasoning_content"))
        if job.continue_final and (last["role"] != "assistant" or not has_text):
            raise RequestError("the last message is to be continued: it must be the assistant's, and have text")
        if job.continue_final == "reasoning_content" and (job.continues_text or not last.get("reasoning_content")):
            raise RequestError("the last message's reasoning is to be continued: it must have some, and no text")
        for name in _OF_TEMPLATE:
            if name in job.variables:
                raise RequestError(f"{name} is not a variable of the template's own: leave it out")
        return replace(job, messages=tuple(messages), tools=plain_tools(job.tools))


def _marked(job: ChatJob, names: ControlNames) -> ChatJob:
    """The job with marks in names of control tokens."""
    return replace(
        job,
        messages=tuple(names.marked_message(message) for message in job.messages),
        tools=tuple(names.marked(job.tools)),
        variables=names.marked(job.variables),
    )
