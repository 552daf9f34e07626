"""An engine that requests come to at any time, and what a worker process answers for it."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from serving.arrivals import Answer, Arrival

from peers.worker import Loader


class Server(Loader):
    """An engine with continuous batching. `load` gets `batch` (most requests at once) and `context`."""

    @abstractmethod
    def answer(self, arrivals: Sequence[Arrival]) -> list[Answer]:
        """Gives the requests to the engine when they are due, and waits for all answers (greedy, end tokens ignored).

        Raises:
            RuntimeError: an answer is shorter than asked for, or failed.
        """

    def reply(self, what: str, details: dict[str, Any]) -> dict[str, Any]:
        """See Loader: `answer` takes a list of [at, prompt, tokens], and gives the times of each answer's tokens."""
        if what != "answer":
            return super().reply(what, details)
        arrivals = [Arrival(*arrival) for arrival in details["arrivals"]]
        answers = self.answer(arrivals)
        for arrival, answer in zip(arrivals, answers, strict=True):
            if answer.tokens != arrival.tokens:
                raise RuntimeError(f"an answer has {answer.tokens} tokens, expected {arrival.tokens}")
        return {"times": [answer.times for answer in answers]}
