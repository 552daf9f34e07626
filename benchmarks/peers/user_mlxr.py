"""MLXR as its users run it: `mlxr.load` on the model's own files with default options, and `Model.start`."""

import time
from collections.abc import Sequence
from typing import Any

import mlxr
from peers.worker import Streamed, User, serve, share_memory, timed

_LEAD = 4
"""How many tokens per prompt the first prompts of a batch may be ahead of the last."""


class MlxrUser(User):
    """A loaded model. For a batch it sets the number of sequences; all other options have their defaults."""

    def load(self, options: dict[str, Any]) -> dict[str, Any]:
        """See Loader; `host` is passed on if it is there."""
        share_memory(options.get("processes", 1))
        asked: dict[str, Any] = {"host": options["host"]} if options.get("host") else {}
        if options["batch"] > 1:
            asked["changes"] = mlxr.Changes(sequences=options["batch"])
        self._model = mlxr.load(options["source"], **asked)
        told = {"host": self._model.host.name, "types": str(self._model.types), "notes": list(self._model.host.notes)}
        return {"version": f"mlxr {mlxr.__version__}", "vocab": self._model.artifact.plan.vocab_size} | told

    def stream(self, prompts: Sequence[Sequence[int]], tokens: int) -> Streamed:
        """See User."""
        lead = _LEAD * len(prompts) if len(prompts) > 1 else 0
        start = time.perf_counter()
        generation = self._model.start(prompts, max_tokens=1 + tokens + lead, ignore_eos=True)
        events = ((event.index, event.token_id) for event in generation)
        streamed = timed(start, events, len(prompts), tokens)
        generation.close()
        return streamed


if __name__ == "__main__":
    serve(MlxrUser())
