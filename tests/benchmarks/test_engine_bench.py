"""The engine's benchmark: its workloads, what it asks of whom, and what its table says. No speed is judged."""

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu.model_files import ModelFiles
from peers.http_server import HttpServer
from peers.models import Files
from peers.serve_mlx_lm import MlxLmServer
from peers.worker import EngineError, _answer
from serving import bench as bench_module
from serving import changes, over_engine, overhead, prefixes, servers, single, streams, throughput
from serving.arrivals import Answer, Arrival, Traffic, total_tokens
from serving.bench import Bench
from serving.figures import Figures, Row

from mlxr.bench.lengths import LengthRange
from mlxr_tests.storyteller import TINY

STEP = 0.01
"""Seconds of a step of the fake engine, which reads a prompt in no time."""


class FakeWorker:
    """Answers as a worker does, at once, and keeps what it was asked."""

    asked: list[tuple[str, str, dict[str, Any]]]
    unable = ""

    def __init__(self, module: str, threads: int, log: object, path: str) -> None:
        self.name = f"{module} {path}".strip()

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        FakeWorker.asked.append((self.name, do, details))
        if do == FakeWorker.unable:
            raise EngineError("its process ended with code -9")
        if do == "load":
            return {"version": f"{self.name} 1"}
        if do == "stream":
            return {"first_seconds": 0.1, "next_seconds": STEP * details["tokens"]}
        if do == "idle":
            return {}
        if do == "profile":
            return dict.fromkeys(("overhead", "schedule", "batch", "events", "sampling", "wall"), 1e-4)
        return {"times": [[at + STEP * (i + 1) for i in range(tokens)] for at, _, tokens in details["arrivals"]]}

    def close(self) -> None:
        FakeWorker.asked.append((self.name, "close", {}))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(bench_module, "Worker", FakeWorker)
    FakeWorker.asked, FakeWorker.unable = [], ""
    files = Files("100m", "q8_0", Path("model.gguf"), Path("folder"))
    yield Bench(files, 2, 2, False, Figures(), StringIO(), Path("base"), Path("programs"))


def answers_asked(name: str) -> list[Any]:
    return [details["arrivals"] for of, do, details in FakeWorker.asked if (of, do) == (name, "answer")]


def test_traffic_is_the_same_for_all_and_differs_only_in_tokens_from_turn_to_turn() -> None:
    traffic = Traffic(400, 8.0, LengthRange(5, 20), LengthRange(2, 9))
    first, again, next_turn = traffic.arrivals(100), traffic.arrivals(100), traffic.arrivals(100, 1)
    assert first == again
    shape = [(a.at, len(a.prompt), a.tokens) for a in first]
    assert shape == [(a.at, len(a.prompt), a.tokens) for a in next_turn]
    assert all(a.prompt != b.prompt for a, b in zip(first, next_turn, strict=True))
    assert {len(a.prompt) for a in first} == set(range(5, 21)) and {a.tokens for a in first} == set(range(2, 10))
    gaps = np.diff([a.at for a in first])
    assert first[0].at == 0 and gaps.min() > 0
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.1) and gaps.std() == pytest.approx(1 / 8, rel=0.15), "exponential"


def test_engines_take_turns_with_the_same_requests(bench: Bench) -> None:
    throughput.measure(bench, counts=(16,))
    ours, theirs = answers_asked("peers.serve_mlxr"), answers_asked("peers.serve_llama")
    assert [len(arrivals) for arrivals in ours] == [4, 16, 16], "the first round warms up"
    assert theirs == [arrivals for arrivals in ours for _ in range(3)]
    asked = [name for name, do, _ in FakeWorker.asked if do == "answer"]
    assert asked == ["peers.serve_mlxr", *["peers.serve_llama"] * 3] * 3
    loads = [details for name, do, details in FakeWorker.asked if do == "load"]
    assert {(load["batch"], load["context"]) for load in loads} == {(16, 1800)}
    arrivals = [Arrival(*arrival) for arrival in ours[1]]
    seconds = max(arrival.at + STEP * arrival.tokens for arrival in arrivals)
    name = "100m q8_0, 16 requests at 16/s"
    assert bench.figures.series[name]["mlxr"] == pytest.approx([total_tokens(arrivals) / seconds] * 2)
    assert bench.figures.series[f"{name}: first token, p50"]["llama.cpp"] == pytest.approx([1e3 * STEP] * 2)
    assert bench.figures.missed() == [name], "a ratio of 1 is too little"


def test_one_that_fails_is_left_out_and_named(bench: Bench) -> None:
    FakeWorker.unable = "answer"
    throughput.measure(bench, counts=(16,), variants=("llama.cpp",))
    assert bench.figures.failures == [
        f"100m q8_0, {name}: its process ended with code -9" for name in ("mlxr", "llama.cpp")
    ]
    assert sum(do == "close" for _, do, _ in FakeWorker.asked) == 2
    assert not bench.figures.rows


def test_one_request_is_compared_with_the_base_commit(bench: Bench) -> None:
    single.measure(bench)
    assert {name for name, _, _ in FakeWorker.asked} == {
        "peers.serve_mlxr",
        "peers.user_mlxr",
        f"peers.user_mlxr {Path('base/src')}",
    }
    name = "100m q8_0, one request, paged arena: decode"
    ours, against, theirs, ratio = bench.figures.compared(bench.figures.rows[name]) or (0, "", 0, 0)
    assert (against, ratio) == ("base", pytest.approx(1.0))
    assert ours == theirs == pytest.approx(1 / STEP)


def test_prompts_with_the_same_front_come_again_and_after_a_restart(bench: Bench) -> None:
    prefixes.measure(bench)
    asked = [(do, details) for _, do, details in FakeWorker.asked]
    restart = [i for i, (do, _) in enumerate(asked) if do == "load"][1]
    before, after = (
        [details["arrivals"][0][1] for do, details in part if do == "answer"]
        for part in (asked[:restart], asked[restart:])
    )
    firsts, seconds, thirds = before[2::2], before[3::2], after[2:]
    assert len(firsts) == len(seconds) == len(thirds) == 5
    for prompts in zip(firsts, seconds, thirds, strict=True):
        assert len({tuple(prompt[:1000]) for prompt in prompts}) == 1
        assert len({tuple(prompt) for prompt in prompts}) == 3
    assert len({tuple(prompt[:1000]) for prompt in [*firsts, *after[:1]]}) == 6
    folders = {details["disk_folder"] for do, details in asked if do == "load"}
    assert len(folders) == 1


def test_a_request_comes_while_a_stream_decodes(bench: Bench) -> None:
    streams.measure(bench)
    pairs = [arrivals for arrivals in answers_asked("peers.serve_mlxr") if len(arrivals) == 2]
    for stream, request in pairs:
        assert stream[0] == 0 and request[0] == pytest.approx(30 * STEP) and stream[2] >= 90
    assert [len(request[1]) for _, request in pairs] == [512] * 7 + [10_000] * 3
    longest = bench.figures.series["100m q8_0, a stream beside 10,000 tokens: longest delay of a token over its step"]
    assert longest["step"] == pytest.approx([1e3 * STEP] * 2) and longest["delay"] == pytest.approx([0, 0], abs=1e-9)


def test_delays_are_those_of_the_stream_while_the_prompt_is_read() -> None:
    stream = [0.0, 1.0, 2.0, 3.0, 6.0, 10.0, 11.0, 30.0]
    beside = streams.beside(stream, came=2.5, first=9.0)
    assert (beside.first, beside.step, beside.delays) == (6.5, 1.0, [0.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="did not overlap"):
        streams.beside(stream, came=2.5, first=31.0)


def test_speed_counts_while_all_places_are_taken(bench: Bench) -> None:
    answers = [Answer([1.0, 2.0, 3.0], 3), Answer([1.0, 2.0, 3.0, 4.0, 5.0], 5), Answer([4.0, 5.0, 6.0], 3)]
    assert changes.steady_speed(answers, 2) == pytest.approx(8 / 4)
    changes.measure(bench, batch=4, generations=2)
    counts = [[tokens for _, _, tokens in arrivals] for arrivals in answers_asked("peers.serve_mlxr")][:3]
    assert counts == [[2], [17] * 4, [5, 9, 13, 17, *[16] * 8]]


def test_the_engines_own_time_stands_alone(bench: Bench) -> None:
    overhead.measure(bench)
    rows = bench.figures.cells()
    assert (
        "100m q8_0, decode step of 64 requests: the engine's own time",
        "100 us",
        "",
        "",
        "",
        "<= 300",
        "ok",
    ) in rows


def test_the_table_has_ratios_of_rounds_and_the_best_peer() -> None:
    figures = Figures()
    row = Row("speed", "tokens/s", "mlxr", ("a", "b", "c"), (">=", 1.3))
    for series, values in {"mlxr": [200.0, 300.0, 130.0], "a": [100.0, 200.0, 100.0], "b": [90.0] * 3}.items():
        for value in values:
            figures.add(row, series, value)
    assert figures.cells()[1:] == [("speed", "200 tokens/s", "a", "100 tokens/s", "1.500", ">= 1.3", "ok")]
    time = Row("time", "ms", "again", ("first",), ("<=", 0.08))
    figures.add(time, "again", 9.0)
    figures.add(time, "first", 100.0)
    assert figures.missed() == ["time"]
    alone = Row("alone", "ms", "mlxr", ("gone",), ("<=", 0.08))
    figures.add(alone, "mlxr", 9.0)
    assert figures.cells()[-1] == ("alone", "9.0 ms", "", "", "", "<= 0.08", "")
    assert "| speed | 200 tokens/s | a |" in figures.markdown() and "speed  200 tokens/s" in figures.table()


def test_mlx_lm_takes_requests_as_they_come(tmp_path: Path) -> None:
    server = MlxLmServer()
    folder = ModelFiles("toy", tmp_path, lambda text: None).source("bf16")
    server.load({"folder": str(folder), "host": "cpu", "batch": 2})
    arrivals = [[0.0, [5, 6, 7], 4], [0.0, list(range(3, 40)), 2], [0.05, [9, 8], 3]]
    times = _answer(server, {"do": "answer", "arrivals": arrivals})["times"]
    assert [len(of_answer) for of_answer in times] == [4, 2, 3]
    assert times[2][0] > 0.05 and all(of_answer == sorted(of_answer) for of_answer in times)


def test_servers_are_asked_the_same_in_turns(bench: Bench) -> None:
    over_engine.measure(bench)
    servers.measure(bench)
    rows = {row.name: bench.figures.compared(row) for row in bench.figures.rows.values()}
    assert rows["100m q8_0, 16 streams over the engine alone"][3] == pytest.approx(1)  # type: ignore[index]
    beside = rows["100m q8_0, 16 requests at 8/s beside llama.cpp's server"]
    assert beside is not None and beside[1] == "llama.cpp" and beside[3] == pytest.approx(1)
    between = rows["100m q8_0, 16 requests at 8/s beside llama.cpp's server: between tokens, p99"]
    assert between is not None and between[0] == pytest.approx(1e3 * STEP)
    assert {name.rsplit(" ", 1)[-1] for name in rows if "requests at" in name and ":" not in name} >= {"2/s", "16/s"}
    assert ("peers.http_server", "idle", {"count": 1000}) in FakeWorker.asked


@pytest.mark.long
def test_a_server_is_asked_over_http() -> None:
    """The real program, as a user starts it."""
    server = HttpServer()
    try:
        told = server.load({"program": "mlxr", "source": str(TINY), "batch": 2, "threads": 1})
        answers = server.answer([Arrival(0.0, [5, 6, 7], 9), Arrival(0.01, [8, 9], 3)])
        server.reply("idle", {"count": 10})
        server.reply("idle", {"count": 0})
    finally:
        server.close()
    assert told["version"].startswith("mlxr ") and [answer.tokens for answer in answers] == [9, 3]
    assert all(0 < answer.times[0] <= answer.times[-1] for answer in answers)
