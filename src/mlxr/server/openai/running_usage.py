"""The usage in each chunk of a stream, for `continuous_usage_stats` as vLLM has it."""

from collections.abc import Sequence

from mlxr.runtime.engine.completion import Event
from mlxr.server.documents.json_form import json_form
from mlxr.server.documents.openai_chunks import RunningTokens

_TOLD = json_form(
    RunningTokens(prompt_tokens=0, completion_tokens=0, total_tokens=0),
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
)


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
        return _TOLD(prompt, completion, prompt + completion)
