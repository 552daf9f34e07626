"""mlx-lm with continuous batching: its `BatchGenerator`, which takes a request as soon as it comes."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.utils import load_model
from serving.arrivals import Answer, Arrival

from peers.server import Server
from peers.worker import serve, share_memory


class MlxLmServer(Server):
    """A loaded model; each measurement has a generator of its own, which stops at no token."""

    def load(self, options: dict[str, Any]) -> dict[str, Any]:
        """Loads a folder. MLX's default device runs it, or the CPU if `host` is `cpu`."""
        share_memory(options.get("processes", 1))
        if options.get("host") == "cpu":
            mx.set_default_device(mx.cpu)
        self._model, _ = load_model(Path(options["folder"]))
        mx.eval(self._model.parameters())
        self._batch = options["batch"]
        return {"version": f"mlx {mx.__version__}"}

    def answer(self, arrivals: Sequence[Arrival]) -> list[Answer]:
        """See Server."""
        waiting = list(enumerate(arrivals))
        times: list[list[float]] = [[] for _ in arrivals]
        places: dict[int, int] = {}
        generator = BatchGenerator(self._model, completion_batch_size=self._batch)
        start = time.perf_counter()
        try:
            while waiting or places:
                while waiting and waiting[0][1].at <= time.perf_counter() - start:
                    number, arrival = waiting.pop(0)
                    (uid,) = generator.insert([list(arrival.prompt)], max_tokens=[arrival.tokens])
                    places[uid] = number
                if not places:
                    time.sleep(max(0.0, waiting[0][1].at - (time.perf_counter() - start)))
                    continue
                _, responses = generator.next()
                now = time.perf_counter() - start
                for response in responses:
                    times[places[response.uid]].append(now)
                    if response.finish_reason:
                        del places[response.uid]
        finally:
            generator.close()
        return [Answer(of_answer, len(of_answer)) for of_answer in times]


if __name__ == "__main__":
    serve(MlxLmServer())
