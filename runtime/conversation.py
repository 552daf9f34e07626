"""A conversation: messages, the model's template for them, and one sequence of the arena that grows with them."""

from collections.abc import Generator

from mlxr.compiler.errors import MlxrError
from mlxr.runtime.argument_types import expect
from mlxr.runtime.completion import Completion
from mlxr.runtime.generate import Generation
from mlxr.runtime.model import Model
from mlxr.runtime.sampling import Sampling
from mlxr.runtime.tokenizer.chat_template import ChatTemplate


class Conversation:
    """Asks and remembers. Owns a sequence of the model's arena until `close`; the template stays the caller's.

    The end of a `with` block closes it.

    Attributes:
        messages: what was said, each with `role` and `content`.
        completion: the last answer's, also while it is coming.
    """

    def __init__(self, model: Model, template: ChatTemplate, system: str | None = None) -> None:
        """Begins a conversation.

        Args:
            model: with a tokenizer.
            template: the model's.
            system: what the model is told first; not every template takes that.
        """
        expect("model", model, Model, "a loaded Model")
        expect("template", template, ChatTemplate, "a ChatTemplate, as model.chat_template() gives it")
        expect("system", system, (str, type(None)), "text")
        self._model, self._template = model, template
        self._kept = model.keep()
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._opening)
        self.completion: Completion | None = None
        self._running: Generation | None = None

    def ask(self, text: str, max_tokens: int | None = None, sampling: Sampling | None = None) -> Generator[str]:
        """The answer to a message, piece by piece as it comes.

        The message and its answer, or as much of it as came before the iterator was closed, are remembered. What the
        arena holds of the conversation is not read again.

        Args:
            text: the message.
            max_tokens: most tokens of the answer; None: up to the end of the context.
            sampling: how tokens are chosen; None: greedily.

        Raises:
            TypeError: an argument of a wrong type.
            ChatTemplateError: the template is faulty or refuses the conversation.
            RequestError: the conversation has become longer than the context.
            MlxrError: the model failed. In all cases nothing of this message is remembered.
        """
        expect("text", text, str, "the message")
        tokenizer, context = self._model.tokenizer, self._model.artifact.plan.arena.context
        assert tokenizer is not None, "a model with a template has one"
        messages = [*self.messages, {"role": "user", "content": text}]
        # The template writes what begins a text itself; control tokens spelled out in it are those tokens.
        ids = tokenizer.encode(self._template.render(messages), add_special=False, parse_special=True)
        generation = self._model.start([ids], max_tokens=max_tokens or context, sampling=sampling, kept=self._kept)
        self._running, self.completion = generation, generation.completions[0]
        failed = False
        try:
            for event in generation:
                if event.text:
                    yield event.text
        except MlxrError:
            failed = True
            raise
        finally:
            generation.close()
            if self._running is generation:  # else the conversation was cleared or closed before the answer's end
                self._running = None
                if not failed:
                    self.messages = [*messages, {"role": "assistant", "content": self.completion.text}]

    def clear(self) -> None:
        """Forgets all but the system message; an answer that is coming ends."""
        self.close()
        self.messages = list(self._opening)

    def close(self) -> None:
        """Gives the arena's blocks back; an answer that is coming ends, and is not remembered."""
        if self._running is not None:
            self._running.close()
            self._running = None
        self._kept.clear()

    def __enter__(self) -> "Conversation":
        """Itself; leaving closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes it."""
        self.close()
