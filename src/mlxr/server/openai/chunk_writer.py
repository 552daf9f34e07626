"""Writes the chunks of streams, and the usage in each of them, for `continuous_usage_stats` as vLLM has it."""

import time
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from mlxr.compiler.version import VERSION
from mlxr.runtime.engine.completion import Event
from mlxr.server.documents.json_form import json_form, json_form_in_two, json_text
from mlxr.server.documents.openai_chunks import Chunk, RunningTokens
from mlxr.server.request_record import noted_warnings

FINGERPRINT = f"mlxr-{VERSION}"
DONE = b"data: [DONE]\n\n"
"""The end of a stream."""
_RUNNING_USAGE = json_form(
    RunningTokens(prompt_tokens=0, completion_tokens=0, total_tokens=0),
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
)


class ChunkForms:
    """The text of one path's chunks.

    Attributes:
        heads: what is before the choice, by whether there are warnings, and usage.
        rest: what follows, to the end of the event.
        last: a chunk without choices.
    """

    def __init__(self, example: Chunk, changing: str) -> None:
        """Makes the text around a token.

        Args:
            example: a chunk of one choice, without usage and warnings.
            changing: the field of a choice that has the token.
        """
        same, choice = ("id", "created", "model"), ("index", changing, "logprobs", "finish_reason")

        def with_fields(*names: str, **values: Any) -> Chunk:
            return example.model_copy(update=dict.fromkeys(names) | values)

        self.heads = {
            bool(warnings) | 2 * bool(usage): json_form_in_two(
                with_fields(*warnings, *usage), (*same, *warnings, *usage), choice
            )[0]
            for warnings in ((), ("warnings",))
            for usage in ((), ("usage",))
        }
        self.rest = json_form_in_two(example, same, choice, after="\n\n")[1]
        self.last = json_form(with_fields("usage", choices=[]), *same, "usage")


class ChunkWriter:
    """The chunks of one answer, as events."""

    def __init__(self, forms: ChunkForms, answer_id: str, model: str, counts: bool) -> None:
        """Begins an answer.

        Args:
            forms: of its path.
            answer_id: the answer's.
            model: its name.
            counts: whether usage was asked for: it is null until it is set.
        """
        self._forms, self._counts, self._rest = forms, counts, forms.rest
        self._place = (quoted(answer_id), int(time.time()), quoted(model))
        self._head, self._has_begun = "", False
        self.set_usage("null")

    def set_usage(self, usage: str) -> None:
        """What the following chunks tell, where usage was asked for.

        Args:
            usage: JSON.
        """
        self._usage = (usage,) if self._counts else ()
        self._head = f"data: {self._forms.heads[2 * self._counts](*self._place, *self._usage)}"

    def chunk(self, index: int, told: str, logprobs: str = "null", reason: str = "null") -> bytes:
        """A chunk; the first one has the warnings.

        Args:
            index: of the answer.
            told: JSON of what is added.
            logprobs: JSON.
            reason: JSON.
        """
        head = self._head if self._has_begun else self._first_head()
        return self._rest(head, index, told, logprobs, reason).encode()

    def last(self, usage: str) -> bytes:
        """The chunk without choices that tells the usage of all.

        Args:
            usage: JSON.
        """
        return f"data: {self._forms.last(*self._place, usage)}\n\n".encode()

    def _first_head(self) -> str:
        self._has_begun = True
        if not (noted := noted_warnings()):
            return self._head
        head = self._forms.heads[1 + 2 * self._counts]
        return f"data: {head(*self._place, json_text(noted), *self._usage)}"


class RunningUsage:
    """Counts the tokens of each answer as they come."""

    def __init__(self, prompt_tokens: Sequence[int]) -> None:
        """Begins with no token of any answer.

        Args:
            prompt_tokens: tokens of each answer's prompt, by the answer's number.
        """
        self._prompt_tokens = prompt_tokens
        self._completion_tokens = [0] * len(prompt_tokens)

    def count(self, index: int, event: Event) -> str:
        """Counts an event of an answer, and gives the JSON text of its usage so far."""
        self._completion_tokens[index] += event.token_id is not None
        prompt, completion = self._prompt_tokens[index], self._completion_tokens[index]
        return _RUNNING_USAGE(prompt, completion, prompt + completion)
