"""MLXR's engine as its users run it: `mlxr.Engine` on the model's own file, and a task of asyncio for each request."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from serving.arrivals import Answer, Arrival

import mlxr
from mlxr.runtime.cache.tiers.tier_sizes import TierSizes
from peers.server import Server
from peers.turn_times import TurnTimes
from peers.worker import serve, share_memory


class MlxrEngine(Server):
    """A running engine."""

    _engine: Any = None

    def load(self, options: dict[str, Any]) -> dict[str, Any]:
        """Starts it with `batch` sequences; `context` is the least context, of which the model may know less.

        `disk_folder` turns its tier on disk on, `profile` the clock that `profile` asks.
        """
        share_memory(options.get("processes", 1))
        self._times = TurnTimes() if options.get("profile") else None
        more: dict[str, Any] = {"host": options["host"]} if options.get("host") else {}
        if options.get("context"):
            more["changes"] = mlxr.Changes(needed_context=options["context"], force_context=True)
        if options.get("disk_folder"):
            more["tiers"] = TierSizes(disk_bytes=options["disk_bytes"], folder=options["disk_folder"])
        self._engine = mlxr.Engine(options["source"], max_sequences=options["batch"], **more)
        return {"version": f"mlxr {mlxr.__version__}"}

    def answer(self, arrivals: Sequence[Arrival]) -> list[Answer]:
        """See Server."""
        return asyncio.run(self._answer_all(arrivals))

    async def _answer_all(self, arrivals: Sequence[Arrival], pause: float = 0.0) -> list[Answer]:
        engine, start = self._engine, time.perf_counter()
        assert engine is not None, "loaded"

        async def answer(arrival: Arrival) -> Answer:
            await asyncio.sleep(max(0.0, arrival.at - (time.perf_counter() - start)))
            params = mlxr.Sampling(max_tokens=arrival.tokens, ignore_eos=True)
            events = engine.generate(arrival.prompt, params, pause=(lambda: pause) if pause else None)
            times = [time.perf_counter() - start async for _ in events]
            return Answer(times, len(times))

        return await asyncio.gather(*map(answer, arrivals))

    def reply(self, what: str, details: dict[str, Any]) -> dict[str, Any]:
        """See Server.

        `profile` answers prompts together, with a `pause` (see `Engine.generate`) or 0, and gives median seconds of the
        engine's turns.
        """
        if what != "profile":
            return super().reply(what, details)
        assert self._times is not None, "loaded with `profile`"
        self._times.restart()
        arrivals = [Arrival(0.0, prompt, details["tokens"]) for prompt in details["prompts"]]
        asyncio.run(self._answer_all(arrivals, details["pause"]))
        return self._times.medians(len(details["prompts"]))

    def close(self) -> None:
        """Ends the engine, which saves what its tier on disk is to keep."""
        if self._engine:
            self._engine.close()


if __name__ == "__main__":
    server = MlxrEngine()
    serve(server)
    server.close()
