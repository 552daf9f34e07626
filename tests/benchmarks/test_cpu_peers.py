"""The CPU benchmark's rows of the user's path, and what its table says of them. No speed is judged."""

import sys
from argparse import Namespace
from pathlib import Path
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
        length = details["tokens"] if do == "prefill" else len(details["prompts"][0])
        self._asked.append((f"{self._name} {do}", length))
        return {"seconds": 2.0, "tokens": length} if do == "prefill" else {"first_seconds": 0.5}


@pytest.mark.parametrize(("format_name", "slow"), [("q8_0", []), ("bf16", ["mlx-lm prefill"])])
def test_users_prompts_have_lengths_that_no_engine_has_seen(format_name: str, slow: list[str]) -> None:
    asked: list[tuple[str, int]] = []
    files = Files(FILES.model, format_name, FILES.source, FILES.folder)
    report, args = Report(2, 1), Namespace(prompts=4)
    run = cpu_peers._Run(files, args, list(cpu_peers._PEERS), report, None, sys.stderr)  # type: ignore[arg-type]
    run._vocab = 100
    run._workers = {name: FakeWorker(asked, name) for name in ("mlxr-user", "llama.cpp", "mlx-lm")}  # type: ignore[misc]
    run._ask_users()
    engines = ["mlxr-user stream", "llama.cpp prefill", *slow]
    assert [name for name, _ in asked] == engines * 5, "one warms up"
    lengths = [length for name, length in asked if name == "mlxr-user stream"]
    assert len(set(lengths)) == 5 and all(300 <= length <= 700 and length != 512 for length in lengths)
    assert [length for name, length in asked if name == "llama.cpp prefill"] == lengths
    found = report.figures[FILES.model][format_name][f"{USER}prompts of 300-700"]
    assert (found["mlxr-user"], found["llama.cpp"]) == ([0.5] * 4, [2.0] * 4)


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
