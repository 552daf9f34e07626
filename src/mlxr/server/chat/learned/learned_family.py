"""A family whose form was learned from its template: all that `TemplateFamily` asks for comes from an `AnswerForm`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mlxr.runtime.engine.sampling import ThoughtLimit
from mlxr.server.chat.answer_grammar import ANYTHING, AnswerGrammar
from mlxr.server.chat.answer_reader import AnswerReader, Reading
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.formats.family import Beginning, TemplateFamily
from mlxr.server.chat.learned.adapt_messages import adapted, json_text, tool_variables, written_calls
from mlxr.server.chat.learned.answer_form import AnswerForm, MessageForm, Slot, ThoughtForm
from mlxr.server.chat.learned.lexemes import chunks
from mlxr.server.chat.learned.read_answer import FENCE, FENCE_END, FormReader
from mlxr.server.chat.learned.spelled_form import SpelledForm
from mlxr.server.chat.learned.write_grammar import CallGrammar


class Learned(TemplateFamily):
    """A family that is described by a form."""

    def __init__(self, form: AnswerForm, control: Mapping[str, int]) -> None:
        """Prepares all that readers need.

        Args:
            form: of the template.
            control: ids of the model's control tokens by their names.
        """
        super().__init__(form)
        self._spelled, self._control = SpelledForm(form, control), control

    @property
    def spoken(self) -> tuple[str, ...]:
        """See `TemplateFamily`."""
        return super().spoken if self.thinks else ()

    @property
    def shown(self) -> str:
        """See `TemplateFamily`."""
        calls = self.form.calls
        marker = (calls.section_start + calls.start).strip()
        return f"{calls.style.value}{f', {marker!r}' if marker else ''}"

    @property
    def is_described(self) -> bool:
        """See `TemplateFamily`."""
        return True

    # Prompts.

    def adapted_jobs(self, job: ChatJob) -> Iterator[Sequence[dict[str, Any]]]:
        """See `TemplateFamily`. Some templates take no text beside calls, nor in a message of its own."""
        yield self.messages(job)
        if self.form.messages.is_text_apart:
            yield self._adapted(job, replace(self.form.messages, is_text_apart=False))

    def messages(self, job: ChatJob) -> Sequence[dict[str, Any]]:
        """See `TemplateFamily`."""
        return self._adapted(job, self.form.messages)

    def _adapted(self, job: ChatJob, form: MessageForm) -> list[dict[str, Any]]:
        messages = adapted(job.messages, form, lambda message: written_calls(self.form.calls, message))
        if not self.form.messages.tools and job.uses_tools:
            text = instruction(job.tools, self.form)
            if messages[0]["role"] == "system":
                messages[0] = messages[0] | {"content": f"{messages[0]['content']}\n\n{text}"}
            else:
                messages.insert(0, {"role": "system", "content": text})
        return messages

    def variables(self, job: ChatJob) -> dict[str, Any]:
        """See `TemplateFamily`."""
        return dict(job.variables) | (tool_variables(job.tools, self.form.messages) if job.uses_tools else {})

    def beginning(self, prompt: str, job: ChatJob) -> Beginning:
        """See `TemplateFamily`."""
        return super().beginning(prompt, job) if self.thinks or job.continues_thought else Beginning.ANSWERING

    def thought_limit(self, tokens: int, job: ChatJob, beginning: Beginning) -> ThoughtLimit:
        """See `TemplateFamily`. Where calls may follow, the text that ends a thought does not begin a text."""
        limit = super().thought_limit(tokens, job, beginning)
        if not (job.uses_tools and self.after_thinking):
            return limit
        before, marker, rest = limit.closing.partition(self.thinking[1])
        space, header = rest[: len(rest) - len(rest.lstrip())], self.form.header.strip()
        again = header if header and self.after_thinking.startswith(header) else ""
        return replace(limit, closing=f"{before}{marker}{space}{again}")

    # Answers.

    def read(self, reader: AnswerReader, job: ChatJob, beginning: Beginning) -> Reading:
        """See `TemplateFamily`."""
        if self.form.lead and job.begins_answer and not job.continue_final:
            lead = self._spelled.spell.text(self.form.lead)
            yield from reader.next_is([lead.strip()])  # some models write it once more
            reader.put_back(lead)
        spelled = self._spelled
        if beginning is Beginning.THINKING and not self.thinks:  # the request itself has begun a thought
            thought = ThoughtForm(self._opening, self._closing, self.thinking[1])
            spelled = SpelledForm(replace(self.form, thought=thought), self._control)
        yield from FormReader(spelled, reader, job, beginning).read()

    # Grammars.

    def calls(self, grammar: AnswerGrammar, job: ChatJob) -> tuple[str, str]:
        """See `TemplateFamily`."""
        return CallGrammar(self.form, grammar, job).calls()

    def start(self, grammar: AnswerGrammar, job: ChatJob, beginning: Beginning) -> str:
        """See `TemplateFamily`. Text is begun as the form has it."""
        form, begin = self.form, self.form.content_start.removeprefix(self.form.lead).lstrip()
        plain = self._answers(grammar, job, form.lead, begin)
        if not self.may_think(beginning):
            return plain
        header, after = form.header.strip(), self.after_thinking
        again = header if header and after.startswith(header) else ""
        opening, closing = self.thinking
        is_opened = beginning is Beginning.THINKING
        # Where the prompt has begun the thought, a call within it would be a call.
        triggers = self._spelled.plain_triggers if job.uses_tools and is_opened else []
        text = grammar.up_to_without("thinking", closing, triggers)
        space = grammar.add("SPACE", r"/[ \n]{0,4}/")
        calls = self._answers(grammar, job, form.lead, after, again)
        closed = f"{text} {space} {calls}"
        if is_opened:
            return closed
        if form.thought is not None and form.thought.has_empty:  # an answer may begin with the end of a thought
            plain = f"({grammar.literal(closing)} {space})? {plain}"
        opening = opening.removeprefix(form.lead.strip())
        shared = grammar.shared_start(opening, (form.calls.section_start + form.calls.start).removeprefix(form.lead))
        begin = f"{grammar.literal(shared)} {grammar.literal(opening.removeprefix(shared))}"
        return f"{_space(grammar)} ({begin} {closed} | {plain})"

    def _answers(self, grammar: AnswerGrammar, job: ChatJob, lead: str, begin: str, again: str = "") -> str:
        """Calls, or an answer.

        Args:
            grammar: gets the rules.
            job: what was asked.
            lead: what calls need not begin with.
            begin: what the text of an answer begins with.
            again: what comes before calls.
        """
        answer = None if job.must_call else grammar.answer(job.sampling)
        options = []
        if job.uses_tools:
            start, calls = self.calls(grammar, job)
            head = f"{grammar.literal(again)} {self._empty_text(grammar)} {_space(grammar)}"
            start = start.removeprefix(lead)
            shared = grammar.shared_start(start, self.thinking[0]) if self.thinks else ""
            options.append(f"{head} {grammar.literal(shared)} {grammar.literal(start.removeprefix(shared))} {calls}")
            if answer is None and not job.must_call:
                options += self._free(grammar, start, calls)
        if answer is not None:
            if job.sampling.json_schema is not None:  # many models write JSON so, and the reader drops the fence
                gap = grammar.add("SPACE", r"/[ \n]{0,4}/")
                answer = f"({answer} | {grammar.text(FENCE)} {gap} {answer} {gap} {grammar.text(FENCE_END)})"
            space = grammar.add("SPACE", r"/[ \n]{0,4}/") if begin else ""
            options.append(f"{grammar.literal(begin.strip())} {space} {answer}".strip())
        return f"({' | '.join(options)})"

    def _empty_text(self, grammar: AnswerGrammar) -> str:
        """The text of an answer that has none, where calls come after it; the prompt may have begun it."""
        form = self.form
        if not form.has_empty_text:
            return ""
        begin = grammar.literal(form.content_start.strip())
        return f"(({begin})? {grammar.literal(form.content_end.strip())})?"

    def _free(self, grammar: AnswerGrammar, lead: str, calls: str) -> list[str]:
        """Any text, in which calls begin only as they should."""
        if self._spelled.is_bare:  # nothing comes before a call
            first = self.form.calls.body[0]
            if not isinstance(first, str) or not first.startswith("{"):
                return [grammar.add("TEXT", ANYTHING)]
            return [grammar.add("TEXT", r'/(.|\n)*/ & ~/\s*(<\|python_tag\|>|\{\s*")(.|\n)*/')]
        marker = chunks(lead)[0]
        rest = grammar.literal(lead.lstrip().removeprefix(marker))
        return [
            f"{grammar.up_to('lead', marker)} {rest} {calls}",
            grammar.without("TEXT", [marker, *self._spelled.plain_triggers]),
        ]


def _space(grammar: AnswerGrammar) -> str:
    """White space before a marker, which models may write as a part of it."""
    return grammar.add("GAP", r"/[ \n]{0,2}/")


def instruction(tools: Sequence[Mapping[str, Any]], form: AnswerForm) -> str:
    """What the system message says of tools where the template has no place for them."""
    described = "\n".join(json_text(tool["function"]) for tool in tools)
    calls = form.calls
    shown = "".join(
        part if isinstance(part, str) else {Slot.NAME: "NAME", Slot.ARGUMENTS: "{ARGUMENTS}"}.get(part, "")
        for part in calls.body
    )
    return (
        "You may call these functions, of which each line describes one by a JSON schema:\n"
        f"<tools>\n{described}\n</tools>\n"
        "To call one, write its name and its arguments as a JSON object, and nothing after it:\n"
        f"{calls.start}{shown}{calls.end}"
    )
