"""The CPU benchmark's rows of the user's path, and what its table says of them. No speed is judged."""

import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cpu_peers
import pytest
from peers.models import Files
from peers.report import USER, Report

FILES = Files("storyteller", "q8_0", Path("model.gguf"), Path("folder"))


class FakeWorker:
    """Answers as a worker does, at once."""

    def __init__(self, asked: list[tuple[str, int]], name: str) -> None:
        self._asked, self._name = asked, name

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        if do == "decode":
            self._asked.append((f"{self._name} {do} {details['batch']}", details["context"]))
            return {"seconds": 2.0, "tokens": details["tokens"] * details["batch"]}
        length = details["tokens"] if do == "prefill" else len(details["prompts"][0])
        self._asked.append((f"{self._name} {do}", length))
        return {"seconds": 2.0, "tokens": length} if do == "prefill" else {"first_seconds": 0.5, "next_seconds": 0.25}


@pytest.mark.parametrize(("format_name", "slow"), [("q8_0", []), ("bf16", ["mlx-lm prefill"])])
def test_users_prompts_have_lengths_that_no_engine_has_seen(format_name: str, slow: list[str]) -> None:
    asked: list[tuple[str, int]] = []
    files = Files(FILES.model, format_name, FILES.source, FILES.folder)
    report, args = Report(2, 1), Namespace(prompts=4)
    run = cpu_peers._Run(files, args, list(cpu_peers._PEERS), report, None, sys.stderr)  # type: ignore[arg-type]
    run._vocab = 100
    run._workers = {name: FakeWorker(asked, name) for name in ("mlxr-user", "llama.cpp", "mlx-lm")}  # type: ignore[misc]
    run._ask_users()
    engines = ["mlxr-user stream", "llama.cpp prefill"]
    assert [name for name, _ in asked] == [*engines * 2, *slow, *engines * 3], "one warms up; mlx-lm reads one"
    lengths = [length for name, length in asked if name == "mlxr-user stream"]
    assert len(set(lengths)) == 5 and all(300 <= length <= 700 and length != 512 for length in lengths)
    assert [length for name, length in asked if name == "llama.cpp prefill"] == lengths
    found = report.figures[FILES.model][format_name][f"{USER}prompts of 300-700"]
    assert (found["mlxr-user"], found["llama.cpp"]) == ([0.5] * 4, [2.0] * 4)


def test_users_tokens_are_timed_beside_the_peers_steps_of_the_same_contexts() -> None:
    asked: list[tuple[str, int]] = []
    report, args = Report(2, 1), Namespace(prompts=4, rounds=2)
    run = cpu_peers._Run(FILES, args, list(cpu_peers._PEERS), report, SimpleNamespace(measure=lambda: 1e9), sys.stderr)  # type: ignore[arg-type]
    run._vocab = 100
    run._workers = {name: FakeWorker(asked, name) for name in ("mlxr-user", "mlxr-user-batch", "llama.cpp", "mlx-lm")}  # type: ignore[misc]
    for decode in cpu_peers._USER_DECODES:
        run._time_tokens_of_users(decode)
    one, several = (
        [("mlxr-user stream", 512), ("llama.cpp decode 1", 512)],
        [("mlxr-user-batch stream", 64), ("llama.cpp decode 16", 64)],
    )
    assert asked == one * 3 + several * 3, "q8_0 is too slow for mlx-lm; a round warms up"
    found = report.figures[FILES.model][FILES.format]
    assert found[f"{USER}decode after 512"] == {"mlxr-user": [128 / 0.25] * 2, "llama.cpp": [128 / 2.0] * 2}
    assert found[f"{USER}decode, 16 prompts"] == {
        "mlxr-user-batch": [16 * 64 / 0.25] * 2,
        "llama.cpp": [16 * 64 / 2.0] * 2,
    }
    report.bytes_read = {FILES.model: {FILES.format: 10**6}}
    rows = {row[:3] for row in report.rows(FILES.model, FILES.format)}
    assert rows == {("decode after 512", "user", "512"), ("decode, 16 prompts", "user", "4096")}


def test_the_table_has_the_median_and_the_95th_percentile_of_users_prompts() -> None:
    report, name = Report(2, 1), f"{USER}prompts of 300-700"
    for engine, times in (
        ("mlxr-user", [0.1, 0.2, 0.3, 0.4, 0.5]),
        ("llama.cpp", [1.0] * 5),
        ("llama.cpp-no-flash", [0.6] * 5),
    ):
        for seconds in times:
            report.add(FILES, engine, name, seconds)
    report.add(FILES, "mlxr", "prefill 512", 300.0)
    report.add(FILES, "llama.cpp", "prefill 512", 100.0)
    assert report.rows("storyteller", "q8_0") == [
        ("prompts of 300-700, p50", "user", "300 ms", "", "600 ms", "2.00 x", "", ""),
        ("prompts of 300-700, p95", "user", "480 ms", "", "600 ms", "1.25 x", "", ""),
        ("prefill 512", "engine", "300", "", "100", "3.00 x", "", ""),
    ]
    assert "| prompts of 300-700, p95 | user | 480 ms |" in report.markdown()
