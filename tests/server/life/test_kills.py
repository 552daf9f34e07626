"""Servers that are killed at random moments leave what they shared whole; the next ones give right answers."""

import random
import signal
import sqlite3
import threading
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

import mlxr
from mlxr.cli import main
from mlxr.registry.registry import Registry
from mlxr_tests.running_server import EXACT
from mlxr_tests.serve_process import ServeProcess
from mlxr_tests.storyteller import TINY

PROMPTS = [f"Hill number {i}: {'a fox who ' * (i % 3 + 2)}" for i in range(24)]
OPTIONS = (*("--host", "cpu", "--threads", "1", "--compute", "exact", "--kv", "f32"), "--max-sequences", "3")
CACHE = ("--context", "160", "--kv-disk", "1MiB", "--kv-memory", "64KiB")
"""An arena that is soon full, so that blocks go to the disk, and a disk that is soon full."""


class Askers:
    """Threads that ask a server until it is gone."""

    def __init__(self, server: ServeProcess, expected: dict[str, str], seed: int) -> None:
        self.server, self.expected, self.seed = server, expected, seed
        self.answers, self.cached, self.wrong = 0, 0, list[str]()
        self.has_begun = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(3)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _ask(self, number: int) -> None:
        rng = random.Random(self.seed * 10 + number)
        with httpx.Client(base_url=self.server.url, timeout=30) as http:
            while True:
                prompt, model = rng.choice(PROMPTS), rng.choice(["tiny", "kept"])
                body = {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0}
                try:
                    answer = http.post("/v1/completions", json=body)
                except httpx.HTTPError:
                    return  # it is gone
                told = answer.json()
                if answer.status_code != 200 or told["choices"][0]["text"] != self.expected[prompt]:
                    self.wrong.append(answer.text)
                    return
                self.has_begun.set()
                self.answers += 1
                self.cached += told["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("kills", [pytest.param(100, marks=pytest.mark.long)])
def test_killed_servers_leave_nothing_wrong(kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MLXR_DATA_DIR", str(tmp_path / "data"))
    assert main(["add", str(TINY), "--name", "kept"]) == 0
    with mlxr.load(TINY, host="cpu", threads=1, changes=replace(EXACT, context=160)) as model:
        expected = {prompt: model.generate(prompt, max_tokens=24).text for prompt in PROMPTS}
    chance, answers, cached = random.Random(0), 0, 0
    for number in range(kills):
        server = ServeProcess(tmp_path, *OPTIONS, *CACHE, "--model", "kept=kept")
        askers = Askers(server, expected, number)
        if number == 0 or chance.random() < 0.7:
            askers.has_begun.wait(60)  # for the first one, models are compiled
        time.sleep(chance.uniform(0.0, 0.7))  # while it loads, answers, or writes blocks
        server.signal(signal.SIGKILL)
        server.close()
        askers.join()
        assert not askers.wrong, askers.wrong
        answers, cached = answers + askers.answers, cached + askers.cached
        assert Registry().names() == ("kept",)
    registry = Registry().path
    with sqlite3.connect(registry) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    assert main(["ps"]) == 0 and main(["cache", "list"]) == 0
    told = f"{answers} answers, {cached} tokens of prompts from caches"
    assert answers > kills and cached and list((tmp_path / "cache").rglob("*.kv")), told
