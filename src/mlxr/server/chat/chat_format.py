"""How one model is spoken to: from a `ChatJob` to a prompt, to options of the engine, and from its answer to deltas."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.engine.too_long import check_length
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.server.chat.answer_parser import AnswerParser
from mlxr.server.chat.answer_reader import AnswerReader
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.formats.plain import Plain


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
        self._family = Plain()
        # A template's process serves one at a time: so does this thread.
        self._thread = ThreadPoolExecutor(1, "mlxr-template")

    async def prompt(self, job: ChatJob) -> list[int]:
        """The tokens that an answer continues.

        Raises:
            RequestError: messages or tools that cannot be used.
            PromptTooLongError: far more text than the context takes.
            ChatTemplateError: the template refuses the messages, or fails.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._prompt, job)

    def constrained(self, job: ChatJob, prompt: Sequence[int] = ()) -> Sampling:
        """The options for the engine, with the constraint that the tool choice asks for.

        Args:
            job: what is asked.
            prompt: its tokens, which say where the answer begins: perhaps inside the model's reasoning.

        Raises:
            RequestError: a choice that cannot be enforced.
        """
        del prompt
        return job.sampling

    def parser(self, job: ChatJob, prompt: Sequence[int] = ()) -> AnswerParser:
        """The parser of one answer; arguments as for `constrained`."""
        del prompt
        reader = AnswerReader()
        return AnswerParser(self._tokenizer, reader, self._family.read(reader, job))

    def close(self) -> None:
        """Ends the template's process. No prompt can be made afterwards."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._template.close()

    def _prompt(self, job: ChatJob) -> list[int]:
        text = self._template.render(job.messages, **job.variables)
        if self._context is not None:
            check_length(text, self._tokenizer, self._context)
        # The template itself writes the BOS, and the names of control tokens in its text mean these tokens.
        return self._tokenizer.encode(text, add_special=False, parse_special=True)
