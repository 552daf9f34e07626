"""Groups of real processes: their answers, and what each of them does when one is lost, stopped, or another one."""

import json
import os
import re
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

import mlxr
from mlxr_tests.few import few
from mlxr_tests.hash_rank import start_ranks
from mlxr_tests.storyteller import TINY

NOTICED_SECONDS = 5.0
SLACK_SECONDS = 6.0
"""For busy machines, and for callers to get their errors."""
Rank = subprocess.Popen[str]


def wait_until_running(rank: Rank) -> None:
    """Waits for answers of `endless`."""
    assert rank.stdout is not None
    assert select.select([rank.stdout], [], [], 60)[0], "no step runs"
    assert rank.stdout.readline() == "running\n"


def ends(rank: Rank, seconds: float = 60) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a process that ends by itself."""
    out, err = rank.communicate(timeout=seconds)
    return rank.returncode, out, err


@pytest.mark.parametrize(
    ("count", "tiers", "pipelines", "states"),
    few(
        [
            *[(2, True, False, True), (2, False, False, False), (3, True, False, True), (2, True, True, False)],
            *[(3, False, True, False), (2, True, True, True)],
        ],
        [(2, True, True, True)],
    ),
)
def test_answers_are_those_of_one_rank(count: int, tiers: bool, pipelines: bool, states: bool, tmp_path: Path) -> None:
    options = {"scene": "answers", "tiers": tiers, "pipelines": pipelines, "states": states}
    with start_ranks(count, tmp_path, **options) as ranks:
        results = [ends(rank) for rank in ranks]
    assert [code for code, _, _ in results] == [0] * count, results
    told = json.loads(results[0][1])
    assert told["wrong"] == 0 and told["preemptions"] and told["cached_tokens"]
    assert bool(told["restored_tokens"]) == tiers
    assert told["blocks"] == min(60 + 5 - count, 61), "as many as the smallest memory holds"
    assert all(not out and not err for _, out, err in results[1:])


def test_a_model_leads_and_follows(tmp_path: Path) -> None:
    with start_ranks(2, tmp_path, scene="model") as ranks:
        results = [ends(rank) for rank in ranks]
    assert [code for code, _, _ in results] == [0, 0], results
    with mlxr.load(TINY, host="cpu", threads=1) as model:
        assert json.loads(results[0][1]) == model.generate("Once upon", max_tokens=20).token_ids


@pytest.mark.parametrize(
    ("count", "lost", "number", "pipelines"),
    few(
        [
            (2, 1, signal.SIGKILL, False),
            (2, 1, signal.SIGSTOP, True),
            (3, 2, signal.SIGKILL, True),
            (3, 1, signal.SIGSTOP, False),
        ],
        [(2, 1, signal.SIGKILL, False)],
    ),
)
def test_lost_follower(count: int, lost: int, number: signal.Signals, pipelines: bool, tmp_path: Path) -> None:
    with start_ranks(count, tmp_path, scene="endless", pipelines=pipelines) as ranks:
        wait_until_running(ranks[0])
        os.kill(ranks[lost].pid, number)
        begin = time.monotonic()
        code, out, err = ends(ranks[0])
        assert time.monotonic() - begin < NOTICED_SECONDS + SLACK_SECONDS
        assert code == 75 and f"rank {lost} (process {ranks[lost].pid} on " in err
        assert ("has not answered for 4 s" if number == signal.SIGSTOP else "has ended") in err, err
        errors = [line for line in out.splitlines() if line != "running"]
        assert len(errors) == 6 and all(re.match(rf"\d RankLostError: rank {lost} \(", line) for line in errors), out
        for rank in ranks[1:]:
            if rank is not ranks[lost]:
                code, _, err = ends(rank)
                assert code == 75 and f"rank {lost} (process" in err
        if number == signal.SIGSTOP:  # when it goes on, it notices that the others have gone
            ranks[lost].send_signal(signal.SIGCONT)
            assert ends(ranks[lost])[0] == 75


@pytest.mark.long
@pytest.mark.parametrize("number", few([signal.SIGKILL, signal.SIGSTOP], [signal.SIGSTOP]))
def test_lost_rank_0(number: signal.Signals, tmp_path: Path) -> None:
    with start_ranks(2, tmp_path, scene="endless") as ranks:
        wait_until_running(ranks[0])
        ranks[0].send_signal(number)
        begin = time.monotonic()
        code, _, err = ends(ranks[1])
        assert time.monotonic() - begin < NOTICED_SECONDS + SLACK_SECONDS
        assert code == 75 and f"rank 1: error: rank 0 (process {ranks[0].pid} on " in err


def test_another_artifact_is_refused_on_all_ranks(tmp_path: Path) -> None:
    with start_ranks(2, tmp_path, scene="answers", artifact={"1": "b" * 64}) as ranks:
        results = [ends(rank) for rank in ranks]
    for code, out, err in results:
        assert code == 1 and not out
        assert f"rank 1 (process {ranks[1].pid} on" in err and "a" * 64 in err and "b" * 64 in err


@pytest.mark.long
def test_a_slow_rank_is_not_lost(tmp_path: Path) -> None:
    with start_ranks(2, tmp_path, scene="endless", slow={"1": 5.0}) as ranks:
        time.sleep(12)
        assert all(rank.poll() is None for rank in ranks)
