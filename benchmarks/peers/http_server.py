"""A server's own program, started as its users start it, and asked over HTTP; `program` says which."""

import asyncio
import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serving.arrivals import Answer, Arrival

import mlxr
from mlxr.runtime.cache_folder import cache_folder
from peers.http_client import answer_all
from peers.prompt_texts import PromptTexts
from peers.server import Server
from peers.storyteller_folder import storyteller_folder
from peers.worker import serve

_START_SECONDS = 300.0


class HttpServer(Server):
    """A running server process: `mlxr`, `llama.cpp` or `mlx-lm`."""

    _process: subprocess.Popen[bytes] | None = None

    def load(self, options: dict[str, Any]) -> dict[str, Any]:
        """Starts the server. `programs` is the folder of llama.cpp's; stretches of the file `text` are the prompts."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._texts = PromptTexts(Path(options["source"]), Path(options["text"])) if options.get("text") else None
        self._model, self._more = "model", {"ignore_eos": True}
        self._idle: list[socket.socket] = []
        program = options["program"]
        command, version = getattr(self, f"_{program.replace('-', '_').replace('.', '_')}")(options)
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self._wait()
        self.answer([Arrival(0.0, [5, 6, 7], 2)])  # loads the model
        return {"version": version}

    def _mlxr(self, options: dict[str, Any]) -> tuple[list[str], str]:
        command = [sys.executable, "-m", "mlxr.cli", "serve", "--model", f"model={options['source']}"]
        command += ["--port", str(self._port), "--max-sequences", str(options["batch"]), "--keep-alive", "forever"]
        if options.get("context"):
            command += ["--context", str(options["context"]), "--force-context"]
        return command, f"mlxr {mlxr.__version__}"

    def _llama_cpp(self, options: dict[str, Any]) -> tuple[list[str], str]:
        program = str(Path(options["programs"]) / "llama-server")
        slots, threads = options["batch"], str(options["threads"])
        command = [program, "--model", options["source"], "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--parallel", str(slots), "--ctx-size", str(slots * options["context"]), "--cont-batching"]
        command += ["--threads", threads, "--threads-batch", threads, "--no-cache-prompt", "--no-webui"]
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        return command, "llama-server, " + (version.stdout + version.stderr).strip().replace("\n", ", ")

    def _mlx_lm(self, options: dict[str, Any]) -> tuple[list[str], str]:
        from importlib.metadata import version

        place = cache_folder("peer-models") / "storyteller"
        self._model, self._more = str(storyteller_folder(Path(options["source"]), Path(options["folder"]), place)), {}
        command = [sys.executable, "-m", "mlx_lm", "server", "--model", self._model, "--port", str(self._port)]
        return command, f"mlx-lm {version('mlx-lm')}"

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self._port)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            finally:
                connection.close()
            code = self._process.poll() if self._process else None
            if code is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: code {code}")
            time.sleep(0.05)

    def answer(self, arrivals: Sequence[Arrival]) -> list[Answer]:
        """See Server: all in one loop."""
        texts = None
        if self._texts is not None:
            texts = [self._texts.of(arrival.prompt) for arrival in arrivals]
        return asyncio.run(answer_all(self._port, arrivals, self._model, self._more, texts))

    def reply(self, what: str, details: dict[str, Any]) -> dict[str, Any]:
        """See Server; `idle` opens so many connections, which ask nothing, in place of those before."""
        if what != "idle":
            return super().reply(what, details)
        for connection in self._idle:
            connection.close()
        self._idle = [socket.create_connection(("127.0.0.1", self._port)) for _ in range(details["count"])]
        return {}

    def close(self) -> None:
        """Ends the server."""
        if self._process:
            self._process.terminate()
            self._process.wait()


if __name__ == "__main__":
    server = HttpServer()
    try:
        serve(server)
    finally:
        server.close()
