"""`mlxr run` and `mlxr serve --distributed` of a model over two ranks, each a process with half of the weights."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from mlxr.cli import main
from mlxr.compiler.artifact import Artifact
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import RequestError
from mlxr.compiler.spec.parallel import Parallel
from mlxr.loading.load import load
from mlxr.loading.resolve import resolve_spec
from mlxr_tests.few import few
from mlxr_tests.ranks import Rank, free_ports, run_ranks, start_ranks
from mlxr_tests.serve_process import wait_for
from mlxr_tests.storyteller import TINY, VALID

MLX_LAUNCH = Path(sys.executable).with_name("mlx.launch")
HOST = ["--host", "cpu", "--threads", "1"]
PROMPT = ["--temperature", "0", "--prompt", "Once upon a time", "--max-tokens", "20", "--ignore-eos"]


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model's artifact over two ranks."""
    spec, _ = resolve_spec(str(TINY))
    folder = tmp_path_factory.mktemp("artifact") / "tiny"
    # In exact arithmetic: logits of this model lie so near to each other that ranks of fast steps may choose others.
    split = spec.model_copy(update={"parallel": Parallel(tensor=2), "compute": "exact"})
    compile_spec(split).artifact.write(folder)
    return str(folder)


def test_run(split: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(TINY), *HOST, *PROMPT, "--compute", "exact"]) == 0
    whole = capfd.readouterr().out
    first, second = run_ranks(2, ["-m", "mlxr.cli", "run", split, "--weights", str(TINY), *HOST, *PROMPT])
    assert (first.code, first.stdout) == (0, whole), first
    assert (second.code, second.stdout, second.stderr) == (0, "", "")
    assert main(["run", split, "--weights", str(TINY), *HOST, *PROMPT]) == 1
    assert "mlx.launch -n 2 -- mlxr" in capfd.readouterr().err


OWN_WORD = """
import os, sys
from mlxr.cli import main
sys.exit(main([*sys.argv[3:], sys.argv[1 + int(os.environ["MLX_RANK"])]]))
"""
"""The command, with a last word of each rank's own."""


@pytest.mark.long
@pytest.mark.parametrize("absent", few([0, 1], [1]))
def test_a_rank_without_weights_is_named_on_all_ranks(split: str, absent: int) -> None:
    weights = ["/absent" if rank == absent else str(TINY) for rank in range(2)]
    for rank in run_ranks(2, ["-c", OWN_WORD, *weights, "run", split, *HOST, *PROMPT, "--weights"]):
        assert rank.code == 1 and not rank.stdout
        is_named = f"rank {absent}" in rank.stderr or rank.stderr.startswith("error: /absent")  # rank 0's own message
        assert is_named and "/absent: no such file" in rank.stderr, rank


@pytest.mark.long
@pytest.mark.skipif(not MLX_LAUNCH.exists(), reason="no mlx.launch here")
@pytest.mark.parametrize("absent", few([0, 1], [1]))
def test_a_rank_that_fails_before_it_meets_the_others_ends_all(split: str, absent: int) -> None:
    """`mlx.launch` ends them; which rank it was stands before its error."""
    artifacts = ["/absent" if rank == absent else split for rank in range(2)]
    paths = [f"PYTHONPATH={os.pathsep.join(path for path in sys.path if path)}"]
    command = [sys.executable, "-c", OWN_WORD, *artifacts, "run", "--weights", str(TINY), *HOST, *PROMPT]
    ended = subprocess.run(
        [MLX_LAUNCH, "-n", "2", "--env", *paths, "--", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ("error: rank 1: " if absent else "error: ") + "/absent: no such file" in ended.stderr, ended
    assert not ended.stdout


def test_what_is_not_compiled_yet_is_split_over_all_ranks(
    split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostfile = tmp_path / "hosts.json"
    hostfile.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(3)]))
    monkeypatch.setenv("MLX_HOSTFILE", str(hostfile))
    monkeypatch.setenv("MLX_RANK", "0")
    loaded: list[Artifact] = []

    def load_rank(artifact: Artifact, *_: object, **__: object) -> None:
        loaded.append(artifact)

    monkeypatch.setattr("mlxr.loading.make_model.load_rank", load_rank)
    load(TINY, host="cpu")
    assert loaded[0].spec.parallel == Parallel(tensor=3)
    load(split, TINY, host="cpu")  # its number of ranks is checked when they join
    assert loaded[1].spec.parallel == Parallel(tensor=2)
    spec, _ = resolve_spec(str(TINY))
    whole = compile_spec(spec, targets=("cpu",)).artifact
    with pytest.raises(RequestError, match=r"one machine, and 3 ranks were started: .* --tensor-parallel 3"):
        load(whole, TINY, host="cpu")
    load(whole, TINY, host="cpu", ranks=1).close()
    assert len(loaded) == 2


@pytest.mark.long
def test_run_without_an_artifact_and_with_a_draft(capfd: pytest.CaptureFixture[str]) -> None:
    exact = [*HOST, *PROMPT, "--compute", "exact"]
    assert main(["run", str(TINY), *exact]) == 0
    whole = capfd.readouterr().out
    ranks = run_ranks(2, ["-m", "mlxr.cli", "run", str(TINY), "--draft", str(TINY), *exact])
    assert [(rank.code, rank.stdout) for rank in ranks] == [(0, whole), (0, "")], ranks


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--restart", "--restart is for a model over several machines"),
        ("tiny --distributed d", "--distributed serves its model alone"),
        ("--distributed d --detach", "leave --detach out"),
    ],
)
def test_options_that_do_not_go_together(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *options.split()]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "serve tiny",
            "for one model over all of them: give it as --distributed tiny",
        ),
        ("run tiny", "mlx.launch does not say where standard input ends: write the prompt"),
    ],
)
def test_what_does_not_go_with_mlx_launch(
    command: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hostfile = tmp_path / "hosts.json"
    hostfile.write_text('[["127.0.0.1:9"], ["127.0.0.1:10"]]')
    monkeypatch.setenv("MLX_HOSTFILE", str(hostfile))
    monkeypatch.setenv("MLX_RANK", "0")
    assert main(command.split()) == 1
    assert message in capsys.readouterr().err


COMMANDS = {
    "bench": ["--prompt-tokens", "8", "--decode-tokens", "2", "--json"],
    "perplexity": ["--text", str(VALID), "--tokens", "60", "--context", "32", "--json"],
    "logits": ["--tokens", "3 1 4", "-o"],
}


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_other_commands(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They end on all ranks, and give what they give on one."""
    file = tmp_path / "logits.npy"
    output = [str(file)] if command == "logits" else []
    arguments = [command, str(TINY), *COMMANDS[command], *output, *HOST, "--compute", "exact"]
    first, second = run_ranks(2, ["-m", "mlxr.cli", *arguments])
    assert (first.code, second.code, second.stdout, second.stderr) == (0, 0, "", ""), (first, second)
    logits = np.load(file) if command == "logits" else None
    assert main(arguments) == 0
    if logits is not None:
        np.testing.assert_allclose(logits, np.load(file), atol=1e-4)
        return
    split, whole = json.loads(first.stdout), json.loads(capsys.readouterr().out)
    if command == "bench":
        assert (split["ranks"], whole["ranks"]) == (2, 1)
        assert split["weight_bytes_per_step"] < 0.6 * whole["weight_bytes_per_step"]
    else:
        assert split["perplexity"] == pytest.approx(whole["perplexity"], rel=1e-5)


def child_of(rank: Rank) -> int:
    """The process that --restart starts again; 0: there is none."""
    pid = rank.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else 0


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds a child by /proc")
def test_a_server_that_loses_a_rank_starts_again(split: str) -> None:
    (port,) = free_ports(1)
    serve = [
        "-m",
        "mlxr.cli",
        "serve",
        "--distributed",
        split,
        "--weights",
        str(TINY),
        "--port",
        str(port),
        "--restart",
    ]
    request = {"model": "tiny", "prompt": "Once", "max_tokens": 20, "stream": True, "temperature": 0}
    http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
    with start_ranks(2, [*serve, *HOST]) as ranks:
        wait_for(lambda: ranks[0].output().stderr.count("serving tiny") == 1)
        before = http.post("/v1/completions", json=request).text
        assert before.count("data: ") > 3 and "error" not in before
        first = child_of(ranks[1])
        os.kill(first, signal.SIGSTOP)
        begin = time.monotonic()
        lost = http.post("/v1/completions", json=request).text
        assert time.monotonic() - begin < 5 + 5
        assert f"rank 1 (process {first} on " in lost and "has not answered for 4 s" in lost, lost
        os.kill(first, signal.SIGCONT)  # it finds that rank 0 has gone
        wait_for(lambda: ranks[0].output().stderr.count("serving tiny") == 2)
        after = http.post("/v1/completions", json=request).text
        assert after.count("data: ") == before.count("data: ") and "error" not in after
        for rank in ranks:
            rank.process.send_signal(signal.SIGTERM)
        codes = [rank.process.wait(30) for rank in ranks]
        assert codes == [0, 0], [rank.output() for rank in ranks]
