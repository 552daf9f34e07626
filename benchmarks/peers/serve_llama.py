"""llama.cpp as a server: `llama-server` with a slot for each request and continuous batching, asked over HTTP.

Whole answers are asked for, so that the client takes next to no time from the server's cores; when the first token came
follows from the time that the server says the tokens after it took. Sampling is the cheapest that it has (top-k with
k = 1), and its cache of prompts is off: no two prompts begin alike.
"""

import http.client
import json
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serving.arrivals import Answer, Arrival

from peers.server import Server
from peers.worker import serve

_START_SECONDS = 120.0


class LlamaServer(Server):
    """A running server process."""

    _process: subprocess.Popen[bytes] | None = None

    def load(self, options: dict[str, Any]) -> dict[str, Any]:
        """Starts the server. `programs` is their folder; `unified` and `flash` choose among its settings."""
        program = Path(options["programs"]) / "llama-server"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        slots, threads = options["batch"], str(options["threads"])
        command = [str(program), "--model", options["source"], "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--parallel", str(slots), "--ctx-size", str(slots * options["context"]), "--cont-batching"]
        command += ["--threads", threads, "--threads-batch", threads, "--threads-http", str(slots + 2)]
        command += ["--no-cache-prompt", "--cache-ram", "0", "--no-slots", "--fit", "off", "--no-webui"]
        command += ["--kv-unified" if options.get("unified") else "--no-kv-unified"]
        command += ["--flash-attn", "auto" if options.get("flash", True) else "off"]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self._wait()
        version = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True)
        return {"version": "llama-server, " + (version.stdout + version.stderr).strip().replace("\n", ", ")}

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                if self._ask("GET", "/health", None)[0] == 200:
                    return
            except OSError:
                pass
            code = self._process.poll() if self._process else None
            if code is not None or time.monotonic() > deadline:
                raise RuntimeError(f"llama-server did not start: code {code}")
            time.sleep(0.05)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def answer(self, arrivals: Sequence[Arrival]) -> list[Answer]:
        """See Server: one thread for each request."""
        answers: list[Answer | Exception] = [RuntimeError("no answer")] * len(arrivals)
        start = time.perf_counter() + 0.01

        def ask(number: int, arrival: Arrival) -> None:
            body = {"prompt": list(arrival.prompt), "n_predict": arrival.tokens, "ignore_eos": True}
            body |= {"samplers": ["top_k"], "top_k": 1, "temperature": 0.0, "cache_prompt": False}
            try:
                time.sleep(max(0.0, start + arrival.at - time.perf_counter()))
                status, reply = self._ask("POST", "/completion", body)
                last = time.perf_counter() - start
                if status != 200:
                    raise RuntimeError(f"llama-server: {reply}")
                first = last - reply["timings"]["predicted_ms"] / 1e3
                answers[number] = Answer([first, last], reply["tokens_predicted"])
            except Exception as error:
                answers[number] = error

        threads = [threading.Thread(target=ask, args=pair) for pair in enumerate(arrivals)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(answers)} requests failed") from failed[0]
        return [answer for answer in answers if isinstance(answer, Answer)]

    def close(self) -> None:
        """Ends the server."""
        if self._process:
            self._process.terminate()
            self._process.wait()


if __name__ == "__main__":
    server = LlamaServer()
    try:
        serve(server)
    finally:
        server.close()
