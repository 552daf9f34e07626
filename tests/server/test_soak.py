"""A server that many clients use at random, for a while: good ones, ones that leave, slow ones, and hostile ones.

Every answer is what the model gives alone, and in the end everything has come back, although the disk is full from time
to time. `MLXR_SOAK_SECONDS=600` makes the long one longer.
"""

import dataclasses
import errno
import gc
import json
import os
import random
import resource
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import mlxr
from mlxr.cli import main
from mlxr.registry import database
from mlxr.registry.registry import Registry
from mlxr.runtime.cache.tiers.block_folder import BlockFolder
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.model_source import ModelSource
from mlxr.server.settings import ServerSettings
from mlxr_tests.api_calls import APIS, CHAT, COMPLETIONS, Question
from mlxr_tests.running_server import CHATML, EXACT, RunningServer, running_server, tiny_source
from mlxr_tests.storyteller import TINY

LONG_SECONDS = float(os.environ.get("MLXR_SOAK_SECONDS", "60"))
MORE_SECONDS = 60
"""How much longer a soak goes on if not all has happened that it is to see: the machine may be busy."""
MOST_GROWTH = 48 << 20
NAMES = ("a", "b")
CHANGES = dataclasses.replace(EXACT, context=320)
QUESTIONS = [
    Question("The fox", max_tokens=12),
    Question("The fox said that " + "the hill " * 12, max_tokens=70, temperature=1.2, seed=3),
    Question("The fox said that " + "the hill " * 11 + "was", max_tokens=40, temperature=0.7, seed=4),
    Question("Rain " * 12, max_tokens=160, temperature=1.0, seed=5),
    Question("Which?", max_tokens=60, temperature=1.0, seed=6, schema={"enum": ["a", "bc", "def"]}),
]
DOCUMENTED = {"no_memory", "model_loading", "queue_full"}
POOLS = ("asyncio_", "uvloop_", "mlxr-metrics")
JSON = {"content-type": "application/json"}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def holdings() -> dict[str, int]:
    """Open files, threads and child processes. Pools of threads keep those that they have once started."""
    children = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            children += len((task / "children").read_text().split())
    threads = Counter(thread.name for thread in threading.enumerate() if not thread.name.startswith(POOLS))
    return {"files": len(list(Path("/proc/self/fd").iterdir())), "children": children, **threads}


class Clients:
    """Threads that ask at random until the time is over."""

    def __init__(self, server: RunningServer, alone: dict[tuple[str, bool, int], str], seconds: float) -> None:
        self.server, self.alone, self.begin = server, alone, time.monotonic()
        self.end = self.begin + seconds
        self.counts: Counter[str] = Counter()
        self.errors: list[BaseException] = []

    def model(self, rng: random.Random) -> str:
        """Most ask for one model, then for the other: so both are loaded again and again."""
        turn = int((time.monotonic() - self.begin) / 1.2)
        return NAMES[(turn + (rng.random() < 0.05)) % 2]

    def polite(self, rng: random.Random, http: httpx.Client) -> None:
        """Reads the answer to its end, at once or slowly."""
        api, number, name = rng.choice(APIS), rng.randrange(len(QUESTIONS)), self.model(rng)
        question = dataclasses.replace(QUESTIONS[number], model=name, stream=rng.random() < 0.5)
        is_slow = question.stream and rng.random() < 0.2
        lines: list[str] = []
        with http.stream("POST", api.path, json=api.body(question)) as response:
            for line in response.iter_lines():
                lines.append(line)
                if is_slow:
                    time.sleep(0.01)
        if response.status_code != 200:
            self.refused(response.status_code, "\n".join(lines))
            return
        answer = api.answer(lines, question.stream)
        if answer.error is not None:
            assert "is still being loaded" in answer.error or "of memory, and" in answer.error, answer.error
            self.counts["refused in a stream"] += 1
            return
        assert (answer.text, answer.finishes) == (self.alone[name, api.is_chat, number], 1), (api.name, question)
        assert answer.model == name
        self.counts[f"answers of {name}"] += 1

    def refused(self, status: int, text: str) -> None:
        error = json.loads(text)["error"]
        message = error if isinstance(error, str) else error["message"]
        assert status in {429, 503}, f"{status}: {text}"
        assert "still being loaded" in message or "of memory, and" in message or "requests wait already" in message
        self.counts[f"refused with {status}"] += 1

    def leaving(self, rng: random.Random, _: httpx.Client) -> None:
        """Goes at any moment, before the answer, in its middle, or in the middle of its own request."""
        api, question = rng.choice(APIS), dataclasses.replace(rng.choice(QUESTIONS), stream=rng.random() < 0.7)
        body = json.dumps(api.body(dataclasses.replace(question, model=self.model(rng)))).encode()
        with self.connected() as connection:
            data = http_request(api.path, body)
            connection.sendall(data[: rng.choice([len(data), len(data), rng.randrange(len(data))])])
            connection.settimeout(rng.choice([0.001, 0.02, 0.1]))
            try:
                for _ in range(rng.randrange(4)):
                    connection.recv(64)
            except TimeoutError:
                pass
        self.counts["left"] += 1

    def hostile(self, rng: random.Random, http: httpx.Client) -> None:
        """Sends what is no request, or one that nobody can serve."""
        good = json.dumps(COMPLETIONS.body(dataclasses.replace(QUESTIONS[0], model=rng.choice(NAMES)))).encode()
        kind = rng.choice(["bytes", "cut", "large", "chunks", "fields", "utf-8", "values", "no http"])
        path = rng.choice(APIS).path
        if kind == "no http":
            with self.connected() as connection:
                connection.sendall(rng.randbytes(200) + b"\r\n\r\n")
                assert connection.recv(1000)[:13] in {b"HTTP/1.1 400 ", b""}
            return
        if kind == "large":
            with self.connected() as connection:
                connection.sendall(http_request(path, b"", "Content-Length: 99999999999"))
                assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")
            return
        content: Any = good
        if kind == "bytes":
            content = rng.randbytes(300)
        elif kind == "cut":
            content = good[: rng.randrange(len(good))]
        elif kind == "chunks":
            content = (b" " * 3000 for _ in range(40))
        elif kind == "fields":
            content = good[:-1] + b', "colour": 1}'
        elif kind == "utf-8":
            content = good.replace(b"fox", bytes([rng.randrange(128, 256)]))
        elif kind == "values":
            wrong = {"temperature": 1e9, "prompt": {}, "model": [], "messages": [3], "options": 1, "input": {}}
            content = json.dumps({"model": rng.choice(NAMES)} | wrong)
        answer = http.post(path, content=content, headers=JSON)
        told = f"{kind}: {answer.status_code} {answer.text}"
        assert answer.status_code in {400, 413} and answer.json()["error"], told
        self.counts["hostile"] += 1

    def other(self, rng: random.Random, http: httpx.Client) -> None:
        """Asks for what is not an answer."""
        paths = ["/health", "/ready", "/v1/models", "/metrics", "/api/tags", "/api/ps"]
        assert http.get(rng.choice(paths)).status_code == 200
        wrong = Question("hi", model="c")
        assert http.post(CHAT.path, json=CHAT.body(wrong)).status_code == 404
        long = COMPLETIONS.body(Question("word " * 700, model=self.model(rng)))
        answer = http.post(COMPLETIONS.path, json=long)
        assert answer.status_code in {400, 429, 503}, answer.text

    def connected(self) -> socket.socket:
        address, port = self.server.url.removeprefix("http://").split(":")
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.connect((address, int(port)))
        return connection

    def run(self) -> None:
        def thread(seed: int) -> None:
            rng = random.Random(seed)
            actions: list[Callable[[random.Random, httpx.Client], None]]
            actions = [self.polite] * 6 + [self.leaving] * 4 + [self.hostile] * 2 + [self.other]
            try:
                with httpx.Client(base_url=self.server.url, timeout=60) as http:
                    while time.monotonic() < self.end and not self.errors:
                        rng.choice(actions)(rng, http)
                        time.sleep(min(0.2, rng.expovariate(50)))
            except BaseException as error:
                self.errors.append(error)

        threads = [threading.Thread(target=thread, args=(seed,)) for seed in range(6)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(self.end - time.monotonic() + 60)
            assert not one.is_alive(), "a client waits for ever"
        if self.errors:
            raise self.errors[0]


def http_request(path: str, body: bytes, length: str = "") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, length or f"Content-Length: {len(body)}", "", ""]).encode() + body


class FullDisk:
    """A disk that is full at the end of each second: then neither blocks nor the registry can be written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        write, connection = BlockFolder.write, database._connection

        def write_block(*args: Any) -> None:
            self.check("blocks")
            write(*args)

        def connect(uri: str) -> sqlite3.Connection:
            try:
                if uri.endswith("mode=rwc"):
                    self.check("registry")
            except OSError as error:
                raise sqlite3.OperationalError("database or disk is full") from error
            return connection(uri)

        monkeypatch.setattr(BlockFolder, "write", write_block)
        monkeypatch.setattr(database, "_connection", connect)

    def check(self, what: str) -> None:
        if time.monotonic() % 1.0 > 0.6:
            self.counts[f"{what} refused"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.counts[f"{what} written"] += 1


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ModelSource]:
    """Two registered models that differ in their templates: the answer says which one gave it."""
    monkeypatch.setenv("MLXR_DATA_DIR", str(tmp_path / "data"))
    tiers = mlxr.TierSizes(memory_bytes=1 << 16, disk_bytes=1 << 20, folder=tmp_path / "kv")
    made = []
    for name in NAMES:
        template = tmp_path / f"{name}.jinja"
        template.write_text(CHATML.replace("assistant\n", f"assistant {name}\n"))
        assert main(["add", str(TINY), "--name", name]) == 0
        source = tiny_source(name, template, max_waiting=8, changes=CHANGES, tiers=tiers)
        made.append(dataclasses.replace(source, model=name))
    return made


def answers_alone(model: mlxr.Model) -> Iterator[tuple[tuple[str, bool, int], str]]:
    for number, question in enumerate(QUESTIONS):
        sampling = dataclasses.replace(question.sampling(), json_schema=question.schema)
        for name in NAMES:
            for api in (CHAT, COMPLETIONS):
                prompt = api.prompt(question.text, model)
                if api.is_chat:
                    rendered = f"<|im_start|>user\n{question.text}<|im_end|>\n<|im_start|>assistant {name}\n"
                    prompt = model.require_tokenizer().encode(rendered, add_special=False, parse_special=True)
                yield (name, api.is_chat, number), model.generate(prompt, sampling=sampling).text


def come_to_rest(server: RunningServer) -> None:
    """Waits until nothing is asked any more, checks what each engine holds, and unloads the models."""
    for model in server.pool.models:
        end = time.monotonic() + 20
        while model.users or model.loading:
            assert time.monotonic() < end, f"{model.name} is in use for ever"
            time.sleep(0.01)
        if (loaded := model.loaded) is not None:
            while (stats := loaded.engine.stats()).running + stats.waiting:
                assert time.monotonic() < end, "an answer goes on without its client"
                time.sleep(0.01)
            assert stats.blocks_free == stats.blocks, "blocks are lost"
            loaded.engine.model.pager.check_integrity()
        server.do(lambda name=model.name: server.pool.unload(name))
    server.http.get("/health")
    gc.collect()


@pytest.mark.long
@pytest.mark.parametrize("seconds", [pytest.param(LONG_SECONDS, id="long")])
def test_a_server_in_use(
    seconds: float, sources: list[ModelSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mlxr.load(TINY, host="cpu", threads=1, changes=CHANGES) as model:
        alone = dict(answers_alone(model))
    disk = FullDisk(monkeypatch)
    memory = sources[0].planned_memory().least * 11 // 10  # of one model, with an arena that is soon full
    settings = ServerSettings(most_body_bytes=1 << 16, alive_seconds=0.05, load_seconds=20)
    with running_server(lambda: ModelPool(sources, memory_bytes=memory, keep_alive=0.5), settings) as server:
        Clients(server, alone, seconds / 4).run()
        come_to_rest(server)
        before, bytes_before = Counter(holdings()), resident_bytes()
        latest = time.monotonic() + seconds + MORE_SECONDS
        clients = Clients(server, alone, seconds * 3 / 4)
        counts = clients.counts
        while True:
            clients.run()
            come_to_rest(server)
            preemptions, restored = (
                sum(source.meter.past[name] for source in sources) for name in ("preemptions", "restored_tokens")
            )
            loads = [model.source.meter.loads for model in server.pool.models]
            is_enough = min(counts["answers of a"], counts["answers of b"]) > 3 and counts["left"] and counts["hostile"]
            is_enough = is_enough and min(loads) > 1 and preemptions and restored
            is_enough = is_enough and disk.counts["blocks written"] and disk.counts["blocks refused"]
            if is_enough or time.monotonic() > latest:
                break
            clients.end = time.monotonic() + seconds
        end = time.monotonic() + 10
        while (more := Counter(holdings()) - before) and time.monotonic() < end:  # connections that are being closed
            time.sleep(0.05)
        assert not more
        if (bytes_now := resident_bytes()) - bytes_before > MOST_GROWTH:
            # After many other tests, memory is in pieces; a leak, though, goes on.
            clients.end = time.monotonic() + seconds
            clients.run()
            come_to_rest(server)
            assert resident_bytes() - bytes_now < MOST_GROWTH, f"after {bytes_now - bytes_before} bytes more before"
    told = f"{counts}, {preemptions} preemptions, {restored} tokens restored, {loads} loads, {disk.counts}"
    print(told)
    assert is_enough, told
    if seconds > 10:
        assert disk.counts["registry written"] and disk.counts["registry refused"], told
    assert all(path.suffix == ".kv" for path in (tmp_path / "kv").rglob("*") if path.is_file()), "unfinished files"
    assert Registry().names() == NAMES


def test_a_thousand_connections_that_ask_nothing() -> None:
    """They cost an open file each: others are answered as before, and nothing stays of them."""
    count, (soft, hard) = 1000, resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * count + 200:
        pytest.skip(f"a process may have no more than {hard} files open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * count + 200), hard))
    settings = ServerSettings(header_seconds=120)
    body = COMPLETIONS.body(Question("The fox"))
    with running_server(lambda: ModelPool([tiny_source()]), settings) as server:
        expected = server.http.post(COMPLETIONS.path, json=body).json()["choices"]
        clients = Clients(server, {}, 0)
        gc.collect()  # what other tests left may go at any time
        before = Counter(holdings())
        idle = [clients.connected() for _ in range(count)]
        assert server.http.post(COMPLETIONS.path, json=body).json()["choices"] == expected
        end = time.monotonic() + 20
        while (meanwhile := Counter(holdings()))["files"] < before["files"] + 2 * count - 20:
            assert time.monotonic() < end, "some are not accepted"
            time.sleep(0.02)
        assert (meanwhile - before).keys() == {"files"}
        for connection in idle[::100]:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 "), "it may ask at any time"
        for connection in idle:
            connection.close()
        end = time.monotonic() + 20
        while (more := Counter(holdings()) - before) and time.monotonic() < end:
            time.sleep(0.02)
        assert not more
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
