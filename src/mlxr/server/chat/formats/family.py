"""What a family of models is to the chat layer: how its templates want messages, and how its answers are written."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Any, ClassVar

from mlxr.runtime.engine.sampling import ThoughtLimit
from mlxr.server.chat.answer_grammar import AnswerGrammar
from mlxr.server.chat.answer_reader import AnswerReader, Reading
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.learned.answer_form import AnswerForm


class Beginning(Enum):
    """Where an answer begins.

    Attributes:
        OPEN: the model may think first.
        THINKING: the prompt has opened the model's thinking.
        ANSWERING: the prompt has closed it, or begins the answer itself.
    """

    OPEN = auto()
    THINKING = auto()
    ANSWERING = auto()


class TemplateFamily(ABC):
    """A family. The defaults are those of most.

    Attributes:
        form: what was learned from the template.
        has_developer: whether templates know the role `developer`; else such messages get the role `system`.
        thinking: the markers around what the model writes for itself.
        after_thinking: what stands between the second one and the answer besides white space, often nothing.
        spoken: names of control tokens that mean these tokens also in the content of the assistant's messages.
        thinks: whether the template speaks of them.
    """

    has_developer: ClassVar[bool] = False
    thinking: tuple[str, str] = ("<think>", "</think>")
    after_thinking = ""

    def __init__(self, form: AnswerForm) -> None:
        """A family's format for one template, with what was learned from it."""
        self.form = form
        thought = form.thought
        self.thinks = thought is not None
        self._opening, self._closing = "<think>\n", "\n</think>\n\n"
        if thought is not None:
            self.thinking = thought.opening.strip(), thought.end_marker
            self.after_thinking = thought.closing.partition(thought.end_marker)[2].strip()
            self._opening, self._closing = thought.opening.lstrip(), thought.closing

    @property
    def spoken(self) -> tuple[str, ...]:
        """See the class: clients send thinking back that was not told apart.

        Markers with others after them may end messages, too; those are never what an assistant says.
        """
        return () if self.after_thinking else self.thinking

    @property
    def opening(self) -> str:
        """What begins a thought, with white space."""
        return self.form.thought.opening if self.form.thought is not None else self._opening

    @property
    def last_marker(self) -> str:
        """What ends an answer and stands nowhere within one; empty: nothing does."""
        return self.form.last_marker

    @property
    def shown(self) -> str:
        """The form of calls in a few words."""
        return "messages in channels"

    @property
    def is_described(self) -> bool:
        """Whether `form` says all of calls."""
        return False

    # Prompts.

    def messages(self, job: ChatJob) -> Sequence[dict[str, Any]]:
        """The messages in the form that the template expects; they have been checked, and their roles are its own."""
        return job.messages

    def adapted_jobs(self, job: ChatJob) -> Iterator[Sequence[dict[str, Any]]]:
        """The messages in the forms that the template may expect, the likeliest first."""
        yield self.messages(job)

    def variables(self, job: ChatJob) -> dict[str, Any]:
        """What the template is given besides messages."""
        return dict(job.variables) | ({"tools": list(job.tools)} if job.uses_tools else {})

    def beginning(self, prompt: str, job: ChatJob) -> Beginning:
        """Where the answer to a prompt begins.

        Args:
            prompt: the end of its text; control tokens are there by their names.
            job: what is asked.
        """
        opening, closing = self.thinking
        if job.continue_final:
            content = str(job.messages[-1]["content"])
            if job.continues_thought:
                return Beginning.THINKING
            is_open = content.rfind(opening) > content.rfind(closing)
            return Beginning.THINKING if is_open else Beginning.ANSWERING
        prompt = prompt.rstrip()
        if prompt.endswith(opening):
            return Beginning.THINKING
        return Beginning.ANSWERING if prompt.endswith(closing) else Beginning.OPEN

    def may_think(self, beginning: Beginning) -> bool:
        """Whether thinking may come before the answer."""
        return beginning is Beginning.THINKING or (beginning is Beginning.OPEN and self.thinks)

    def thought_limit(self, tokens: int, job: ChatJob, beginning: Beginning) -> ThoughtLimit:
        """The limit on what is thought before the answer."""
        del job
        is_open = beginning is Beginning.THINKING
        return ThoughtLimit(tokens, self._opening, self._closing, self.thinking[1], is_open)

    # Answers.

    @abstractmethod
    def read(self, reader: AnswerReader, job: ChatJob, beginning: Beginning) -> Reading:
        """Reads an answer."""

    # Grammars.

    @abstractmethod
    def start(self, grammar: AnswerGrammar, job: ChatJob, beginning: Beginning) -> str:
        """What an answer is, where it is constrained.

        Args:
            grammar: gets the rules.
            job: must call a tool, or has a constraint of its own, or has tools that must be called as they say.
            beginning: where the answer begins.
        """

    def arguments(self, grammar: AnswerGrammar, job: ChatJob) -> list[tuple[str, str]]:
        """The names of the tools that may be called, each with the rule of its arguments."""
        rules = []
        for number, tool in enumerate(job.tools):
            function = tool["function"]
            if job.chosen_tool in (None, function["name"]):
                schema = {"type": "object", **(function.get("parameters") or {})}
                rule = grammar.schema(f"arguments_{number}", schema, strict=bool(function.get("strict")))
                rules.append((function["name"], rule))
        return rules


def one_or_more(item: str, between: str, many: bool) -> str:
    """An item, or several with something between them."""
    return f"{item} ({between} {item})*" if many else item
