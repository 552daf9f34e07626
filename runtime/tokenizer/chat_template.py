"""Chat templates, which turn a conversation into the text that a model was trained to continue.

A template is a Jinja2 program that comes with a model, and so it cannot be trusted. It runs in a process of its own
(`template_worker`) with limited time, memory and output. A template that exceeds a limit only causes an error.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlxr.compiler.errors import ChatTemplateError
from mlxr.runtime.sealed.limited_process import LimitedProcess, ProcessEndedError
from mlxr.runtime.tokenizer.system_messages import ROLES, Message, joined_turns, render_all
from mlxr.runtime.tokenizer.template_names import ASKED, ReadNames

MOST_BYTES = 512 << 20
MOST_CHARACTERS = 4 << 20
"""That a template may write besides what it was given, which it may write twice."""
MOST_GIVEN = 16 << 20
"""Characters that a template may be given, with what keeps names of control tokens apart. They are written in one
call."""
CPU_SECONDS = 2
WALL_SECONDS = 20.0
_WORKER = Path(__file__).with_name("template_worker.py")  # never imported here: it imports jinja2


class ChatTemplate:
    """One template, perhaps with another one for conversations with tools.

    Its process starts when first needed, or with `start`. Several threads must not use it at once.

    Attributes:
        text: the Jinja2 program.
        tool_use: the program that is used instead when tools are given; None: `text` serves both.
        source: the file that it comes from, for messages.
    """

    def __init__(
        self, text: str, source: str, tokens: Mapping[str, str] | None = None, tool_use: str | None = None
    ) -> None:
        """Makes a template; nothing runs yet.

        Args:
            text: see the class.
            source: see the class.
            tokens: the text of special tokens by the names that templates use: `bos_token`, `eos_token`, ...
            tool_use: see the class.
        """
        self.text, self.tool_use, self.source = text, tool_use, source
        self._tokens = dict(tokens or {})
        self._names: dict[str, ReadNames] = {}
        self._process: LimitedProcess | None = None

    def start(self) -> None:
        """Starts the process without waiting for it, so that it loads while the caller does other things."""
        if self._process is not None:
            return
        try:
            self._process = _begun.pop() if _begun else _new_process()
        except ProcessEndedError as error:
            raise ChatTemplateError(f"chat template of {self.source}: {error}") from error

    def render(self, messages: Sequence[Message], /, add_generation_prompt: bool = True, **variables: Any) -> str:
        """The text of a conversation, in which no system message is lost, and what is named as the template names it.

        System messages that the template refuses or leaves out become part of messages of the user
        (`system_messages`), and neighbouring messages of the user one message where the template refuses them;
        reasoning and its switches also get the names that it reads (`template_names`).

        Args:
            messages: in order.
            add_generation_prompt: whether to add the text that precedes an answer of the assistant.
            variables: further variables for the template; with `tools`, `tool_use` is rendered.

        Raises:
            ChatTemplateError: the template is faulty, refuses the conversation, leaves out a system message wherever
                it stands, takes too long, too much memory, or writes too much text.
        """
        names = self.names(variables)
        messages, variables = names.messages(messages), names.values(variables)

        def render(adapted: Sequence[Message]) -> str:
            try:
                return self.render_as_is(adapted, add_generation_prompt, **variables)
            except ChatTemplateError as error:
                joined = joined_turns(adapted)
                if error.__cause__ is not None or joined == list(adapted):
                    raise
                try:
                    return self.render_as_is(joined, add_generation_prompt, **variables)
                except ChatTemplateError:
                    raise error from None

        if not any(message.get("role") in ROLES for message in messages):
            return render(messages)
        text = render_all(render, messages, json.dumps(variables, ensure_ascii=False))
        if text is None:
            raise ChatTemplateError(
                f"chat template of {self.source}: it leaves out a system message: put its text into one of the user"
            )
        return text

    def program(self, variables: Mapping[str, Any]) -> str:
        """The text of the template that is rendered with these variables."""
        return self.text if self.tool_use is None or variables.get("tools") is None else self.tool_use

    def names(self, variables: Mapping[str, Any]) -> ReadNames:
        """Which names of reasoning and tools `program` reads; none, if it is faulty, which `render` tells.

        Raises:
            ChatTemplateError: it takes too long or too much memory.
        """
        program = self.program(variables)
        if program not in self._names:
            answer = self._ask({"template": program, "names": ASKED})
            self._names[program] = ReadNames(answer.get("keys", ()), answer.get("variables", ()))
        return self._names[program]

    def render_as_is(self, messages: Sequence[Message], /, add_generation_prompt: bool = True, **variables: Any) -> str:
        """What the template makes of a conversation, as transformers' `apply_chat_template`; see `render`.

        A template that fails without tools, as those do that are made for tools, gets an empty list of them.

        Raises:
            ChatTemplateError: as `render`, but for what is left out.
        """
        try:
            return self._render(messages, add_generation_prompt, variables)
        except ChatTemplateError as error:
            if error.__cause__ is not None or variables.get("tools") is not None:
                raise
            try:
                return self._render(messages, add_generation_prompt, {**variables, "tools": []})
            except ChatTemplateError:
                raise error from None

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool, variables: Mapping[str, Any]) -> str:
        known = {"tools": None, "documents": None} | self._tokens | dict(variables)
        known |= {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        given = _characters([list(messages), variables])
        if given > MOST_GIVEN:
            raise ChatTemplateError(
                f"chat template of {self.source}: a conversation of {given} characters, what keeps names of control "
                f"tokens apart included, and at most {MOST_GIVEN} are taken: send less"
            )
        most = MOST_CHARACTERS + 2 * given
        answer = self._ask({"template": self.program(known), "variables": known, "most_characters": most})
        if "text" in answer:
            rendered: str = answer["text"]
            return rendered
        where = f", line {answer['line']}" if answer["line"] else ""
        raise ChatTemplateError(f"chat template of {self.source}{where}: {answer['error']}")

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """What the process answers.

        Raises:
            ChatTemplateError: it took too long or too much memory, or cannot start.
        """
        self.start()
        assert self._process is not None, "started above"
        try:
            return self._process.ask(question, WALL_SECONDS)
        except BaseException as error:
            self._process = None  # it has ended
            if isinstance(error, ProcessEndedError):
                raise ChatTemplateError(f"chat template of {self.source}: it {error}; it was stopped") from error
            raise

    def close(self) -> None:
        """Ends the process. Rendering again starts a new one."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def __enter__(self) -> "ChatTemplate":
        """Itself; leaving closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes it."""
        self.close()


_begun: list[LimitedProcess] = []


@contextmanager
def process_begun() -> Iterator[None]:
    """A context for the load of a model that probably has a template: the process that it will need starts beside it.

    The next template that starts takes it. Where none does, it ends with the context.
    """
    try:
        process = _new_process()
    except ProcessEndedError:  # which the template tells, if there is one
        yield
        return
    _begun.append(process)
    try:
        yield
    finally:
        if process in _begun:
            _begun.remove(process)
            process.close()


def _new_process() -> LimitedProcess:
    return LimitedProcess(_WORKER, memory_bytes=MOST_BYTES, cpu_seconds=CPU_SECONDS)


def _characters(value: Any) -> int:
    """The length of all texts in a value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_characters(key) + _characters(item) for key, item in value.items())
    return sum(map(_characters, value)) if isinstance(value, list | tuple) else 0
