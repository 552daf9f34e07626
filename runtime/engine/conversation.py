"""A conversation: messages, the model's chat template, and answers.

Each prompt begins with the messages before it, whose K and V the prefix cache still has, unless others needed the room.
"""

from bisect import bisect_left
from collections.abc import Generator, Sequence

from mlxr.compiler.errors import MlxrError
from mlxr.runtime.argument_types import expect
from mlxr.runtime.engine.completion import Completion
from mlxr.runtime.engine.errors import PromptTooLongError
from mlxr.runtime.engine.generation import Generation
from mlxr.runtime.engine.model import Model
from mlxr.runtime.engine.reasoning import NO_REASONING, Reasoning, with_limit
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.engine.too_long import check_length, too_long
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.system_messages import Message
from mlxr.runtime.tokenizer.thinking_form import ThinkingForm


class Conversation:
    """Messages to a model and its answers. It does not own the template.

    The end of a `with` block closes it.

    Attributes:
        messages: the conversation so far; each has a `role` and `content`.
        completion: the completion of the last answer, also while it is being generated.
    """

    def __init__(
        self,
        model: Model,
        template: ChatTemplate,
        system: str | None = None,
        *,
        reasoning: Reasoning = NO_REASONING,
    ) -> None:
        """Starts a conversation.

        Args:
            model: one that has a tokenizer.
            template: the model's chat template.
            system: the system message. Where the template takes none, it becomes part of the first message.
            reasoning: how the model thinks before it answers.
        """
        expect("model", model, Model, "a loaded Model")
        expect("template", template, ChatTemplate, "a ChatTemplate, as model.chat_template() gives it")
        expect("system", system, (str, type(None)), "text")
        expect("reasoning", reasoning, Reasoning, "a Reasoning")
        self._model, self._template, self._reasoning = model, template, reasoning
        self._thinking: ThinkingForm | None = None
        self._is_thinking_known = False
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._opening)
        self.completion: Completion | None = None
        self._running: Generation | None = None

    def ask(self, text: str, max_tokens: int | None = None, sampling: Sampling | None = None) -> Generator[str]:
        """The answer to a message, piece by piece as it is generated.

        The conversation remembers the message and its answer, or the part of the answer that came before the iterator
        was closed. What the arena holds of the conversation is not computed again.

        Args:
            text: the message.
            max_tokens: most tokens of the answer; None: as many as the context has room for.
            sampling: how tokens are chosen; None: greedily.

        Raises:
            TypeError: an argument of a wrong type.
            ChatTemplateError: the template is faulty or refuses the conversation.
            PromptTooLongError: the conversation has become longer than the context: `drop_oldest` makes room.
            RequestError: a budget of reasoning and a constraint of the answer, which contradict each other.
            MlxrError: the model failed. After any of these errors, the conversation has forgotten this message.
        """
        expect("text", text, str, "the message")
        limit = self._model.limit
        messages = [*self.messages, {"role": "user", "content": text}]
        prompt, ids = self._prompt(messages)
        if len(ids) >= limit.tokens:
            raise too_long(
                f"the conversation has {len(ids)} tokens with this message", limit, "drop old turns, write less"
            )
        most = limit.tokens if max_tokens is None else max_tokens
        generation = self._model.start([ids], max_tokens=most, sampling=self._limited(prompt, sampling))
        self._running, self.completion = generation, generation.completions[0]
        failed, given = False, list[str]()
        try:
            for event in generation:
                if event.text:
                    given.append(event.text)
                    yield event.text
        except MlxrError:
            failed = True
            raise
        finally:
            generation.close()
            if self._running is generation:  # else the conversation was cleared or closed during the answer
                self._running = None
                if not failed:
                    self.messages = [*messages, {"role": "assistant", "content": "".join(given)}]

    @property
    def num_turns(self) -> int:
        """Number of turns: messages of the user with their answers."""
        return (len(self.messages) - len(self._opening)) // 2

    def turns_to_drop(self, text: str, max_tokens: int | None = None) -> int:
        """How many of the oldest turns must be dropped so that a message and its answer fit into the context.

        The answer should have room for `max_tokens`, or for a quarter of the context if that is less.

        Raises:
            PromptTooLongError: the message does not fit even without the turns before it.
            ChatTemplateError: as in `ask`.
        """
        limit = self._model.limit
        context = limit.tokens
        room = min(max_tokens or context, max(1, context // 4))

        def length(dropped: int) -> int:
            try:
                return len(self._prompt([*self._without(dropped), {"role": "user", "content": text}])[1])
            except PromptTooLongError:
                return context

        counts = range(self.num_turns + 1)
        turns = bisect_left(counts, True, key=lambda dropped: length(dropped) + room <= context)
        if turns == len(counts):
            turns -= 1
            if (alone := length(turns)) >= context:
                raise too_long(f"the message alone has {alone} tokens", limit, "write less")
        return turns

    def drop_oldest(self, turns: int = 1) -> None:
        """Forgets the oldest turns: messages of the user with their answers. The next `ask` computes the rest anew."""
        self.messages = self._without(turns)

    def _without(self, turns: int) -> list[dict[str, str]]:
        return [*self._opening, *self.messages[len(self._opening) + 2 * turns :]]

    def _limited(self, prompt: str, sampling: Sampling | None) -> Sampling | None:
        """The options of an answer, with the limit on what is thought before it."""
        if sampling is not None and sampling.thought is not None:
            return sampling
        if not self._is_thinking_known:
            self._thinking, self._is_thinking_known = self._reasoning.find_form(self._template), True
        limit = self._reasoning.limit(self._template, self._thinking, prompt)
        return sampling if limit is None else with_limit(sampling or Sampling(), limit)

    def _prompt(self, messages: Sequence[Message]) -> tuple[str, list[int]]:
        """The text of a conversation up to where the next answer begins, and its tokens."""
        tokenizer = self._model.require_tokenizer()
        text = self._template.render(messages, **self._reasoning.variables_for(self._template))
        check_length(text, tokenizer, self._model.limit)
        # The template itself writes the BOS, and the names of control tokens in its text mean these tokens.
        return text, tokenizer.encode(text, add_special=False, parse_special=True)

    def clear(self) -> None:
        """Forgets all but the system message; an answer that is being generated ends."""
        self.close()
        self.messages = list(self._opening)

    def close(self) -> None:
        """Ends an answer that is being generated; it is not remembered."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def __enter__(self) -> "Conversation":
        """Itself; leaving closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes it."""
        self.close()
