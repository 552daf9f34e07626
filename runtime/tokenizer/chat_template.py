"""Chat templates, which turn a conversation into the text that a model was trained to continue.

A template is a Jinja2 program that comes with a model, and so it cannot be trusted. It runs in a process of its own
(`template_worker`) with limited time, memory and output. A template that exceeds a limit only causes an error.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mlxr.compiler.errors import ChatTemplateError
from mlxr.runtime.limited_process import LimitedProcess, ProcessEndedError
from mlxr.runtime.tokenizer import template_worker

MOST_BYTES = 512 << 20
MOST_CHARACTERS = 4 << 20
"""That a template may write besides what it was given, which it may write twice."""
CPU_SECONDS = 2
WALL_SECONDS = 20.0

Message = Mapping[str, Any]
"""`role` (system, user, assistant, ...) and `content`, as templates read them."""


class ChatTemplate:
    """One template. Its process starts when first needed, or with `start`. Several threads must not use it at once."""

    def __init__(self, text: str, source: str, tokens: Mapping[str, str] | None = None) -> None:
        """Makes a template; nothing runs yet.

        Args:
            text: the Jinja2 program.
            source: the file that it comes from, for messages.
            tokens: the text of special tokens by the names that templates use: `bos_token`, `eos_token`, ...
        """
        self.text, self.source = text, source
        self._tokens = dict(tokens or {})
        self._process: LimitedProcess | None = None

    def start(self) -> None:
        """Starts the process without waiting for it, so that it loads while the caller does other things."""
        if self._process is not None:
            return
        try:
            self._process = LimitedProcess(template_worker.__file__, memory_bytes=MOST_BYTES, cpu_seconds=CPU_SECONDS)
        except ProcessEndedError as error:
            raise ChatTemplateError(f"chat template of {self.source}: {error}") from error

    def render(self, messages: Sequence[Message], /, add_generation_prompt: bool = True, **variables: Any) -> str:
        """The text of a conversation.

        Args:
            messages: in order.
            add_generation_prompt: whether to add the text that precedes an answer of the assistant.
            variables: further variables for the template.

        Raises:
            ChatTemplateError: the template is faulty, refuses the conversation, or takes too long, too much memory, or
                writes too much text.
        """
        known = {"tools": None, "documents": None} | self._tokens | variables
        known |= {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        self.start()
        assert self._process is not None, "started above"
        most = MOST_CHARACTERS + 2 * _characters([list(messages), variables])
        question = {"template": self.text, "variables": known, "most_characters": most}
        try:
            answer = self._process.ask(question, WALL_SECONDS)
        except BaseException as error:
            self._process = None  # it has ended
            if isinstance(error, ProcessEndedError):
                raise ChatTemplateError(f"chat template of {self.source}: it {error}; it was stopped") from error
            raise
        if "text" in answer:
            text: str = answer["text"]
            return text
        where = f", line {answer['line']}" if answer["line"] else ""
        raise ChatTemplateError(f"chat template of {self.source}{where}: {answer['error']}")

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


def _characters(value: Any) -> int:
    """The length of all texts in a value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_characters(key) + _characters(item) for key, item in value.items())
    return sum(map(_characters, value)) if isinstance(value, list | tuple) else 0
