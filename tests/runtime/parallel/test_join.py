"""Processes find each other, however late they start, or say who is missing."""

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxr.compiler.errors import HostError, MlxrError, RankError, WeightsError
from mlxr.runtime.parallel import wait_for_ranks as waiting
from mlxr.runtime.parallel.cores import share
from mlxr.runtime.parallel.join import join
from mlxr.runtime.parallel.launch import RankLaunch, is_launched, naming_rank, read_launch
from mlxr_tests.ranks import free_ports


def test_what_each_backend_of_mlx_launch_sets(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps([["10.0.0.1:5000", "10.0.0.1:5001"], ["10.0.0.2:5000"]]))
    ring = RankLaunch("ring", 1, 2, ("10.0.0.1", 5000), ("10.0.0.1:5000", "10.0.0.2:5000"))
    assert read_launch({"MLX_RANK": "1", "MLX_HOSTFILE": str(hosts)}) == ring
    nccl = {"MLX_RANK": "0", "NCCL_HOST_IP": "10.0.0.1", "NCCL_PORT": "12345", "MLX_WORLD_SIZE": "2"}
    assert read_launch(nccl) == RankLaunch("nccl", 0, 2, ("10.0.0.1", 12345), ("", ""))
    jaccl = {"MLX_RANK": "0", "MLX_IBV_DEVICES": str(hosts), "MLX_JACCL_COORDINATOR": "10.0.0.1:7"}
    assert read_launch(jaccl) == RankLaunch("jaccl", 0, 2, ("10.0.0.1", 7), ("", ""))
    mpi = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
    assert read_launch(mpi) == RankLaunch("mpi", 3, 4, None, ("",) * 4)
    empty = tmp_path / "empty"
    empty.touch()  # what mlx.launch -n 1 writes
    assert read_launch({"MLX_RANK": "0", "MLX_HOSTFILE": str(empty)}) == RankLaunch("ring", 0, 1, None, ("",))
    assert read_launch({"MLX_RANK": "0"}) is None


@pytest.mark.parametrize(
    ("rank", "hosts", "message"),
    [
        ("2", '[["a:1"], ["b:1"]]', "rank 2 of 2; ranks are 0 to 1"),
        ("x", '[["a:1"], ["b:1"]]', "MLX_RANK is 'x', not a number"),
        ("0", "[[", "cannot be read as JSON"),
        ("0", '["a:1"]', r'should be a list as \["host:port"\]'),
        ("0", '[["a"], ["b"]]', "has 'a' for rank 0; give host:port"),
    ],
)
def test_what_the_backend_would_not_understand(rank: str, hosts: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(hosts)
    with pytest.raises(HostError, match=message):
        read_launch({"MLX_RANK": rank, "MLX_HOSTFILE": str(path)})


def test_errors_name_their_rank_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.json"
    hosts.write_text('[["10.0.0.1:1"], ["10.0.0.2:1"]]')
    monkeypatch.setenv("MLX_HOSTFILE", str(hosts))

    def told(rank: str, error: MlxrError) -> str:
        monkeypatch.setenv("MLX_RANK", rank)
        with pytest.raises(type(error)) as raised, naming_rank(), naming_rank():
            raise error
        return str(raised.value)

    assert told("1", WeightsError("no such file")) == "rank 1: no such file"
    assert told("1", RankError(1, "lost rank 0: it has ended")) == "rank 1 lost rank 0: it has ended"
    assert told("1", HostError("rank 10 is another one")) == "rank 1: rank 10 is another one"
    assert told("0", WeightsError("no such file")) == "no such file"


def test_without_mlx_launch_the_error_shows_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not is_launched()
    with pytest.raises(HostError, match=r"mlx\.launch -n 2 -- mlxr"):
        join(2)
    hosts = tmp_path / "hosts"
    hosts.write_text('[["a:1"], ["b:1"], ["c:1"]]')
    monkeypatch.setenv("MLX_RANK", "0")
    monkeypatch.setenv("MLX_HOSTFILE", str(hosts))
    with pytest.raises(HostError, match="split over 2 ranks, and 3 were started"):
        join(2)


def _launch(rank: int, port: int, size: int = 3) -> RankLaunch:
    return RankLaunch("ring", rank, size, ("127.0.0.1", port), tuple(f"host{i}:1" for i in range(size)))


class _Ranks:
    """Ranks that wait for each other, each in a thread."""

    def __init__(self) -> None:
        [self.port] = free_ports(1)
        self.results: dict[int, object] = {}
        self._threads: list[threading.Thread] = []

    def start(self, rank: int, wait_s: float, size: int = 3) -> None:
        def run() -> None:
            try:
                self.results[rank] = waiting.wait_for_ranks(_launch(rank, self.port, size), wait_s)
            except HostError as error:
                self.results[rank] = str(error)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def end(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()


def test_late_ranks_strangers_and_ranks_that_come_twice() -> None:
    ranks = _Ranks()
    ranks.start(1, 20)  # before rank 0
    time.sleep(0.3)
    ranks.start(0, 20)
    _eventually(lambda: socket.create_connection(("127.0.0.1", ranks.port)).close())
    with socket.create_connection(("127.0.0.1", ranks.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: somebody who is no rank\r\n\r\n")
        left = socket.create_connection(("127.0.0.1", ranks.port))  # a rank 2 that is killed
        left.sendall(waiting._HELLO.pack(waiting._MAGIC, 2, 4, bytes(16))[:10])
        left.close()
        ranks.start(2, 20)
        ranks.end()
    assert ranks.results == dict.fromkeys(range(3), (waiting.this_machine(),) * 3)


def test_missing_ranks_are_named_everywhere(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(waiting, "_SAY_AFTER_S", 0.6)  # after rank 2 has come
    ranks = _Ranks()
    ranks.start(0, 1)
    ranks.start(2, 1)
    ranks.end()
    assert ranks.results[0] == ranks.results[2]
    assert "rank 1 (host1:1) did not come within 1 s" in str(ranks.results[0])
    assert "waiting for rank 1 (host1:1)" in caplog.text


def test_rank_0_is_missing() -> None:
    ranks = _Ranks()
    ranks.start(1, 0.5)
    ranks.end()
    assert f"rank 0 did not answer rank 1 at 127.0.0.1:{ranks.port}" in str(ranks.results[1])


def test_another_hostfile() -> None:
    ranks = _Ranks()
    ranks.start(0, 10)
    ranks.start(1, 10, size=4)
    ranks.end()
    assert ranks.results[0] == ranks.results[1]
    assert "rank 1 of 4 came to rank 0 of 3" in str(ranks.results[0])


def _eventually(action: Callable[[], None]) -> None:
    until = time.monotonic() + 10
    while True:
        try:
            return action()
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)


def _machine(root: Path, siblings: dict[int, str], quota: str | None = None) -> Path:
    for cpu, text in siblings.items():
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text)
    if quota:
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text("0::/\n")
        (root / "proc/self/mountinfo").write_text("1 0 0:1 / /group rw - cgroup2 cgroup2 rw\n")
        (root / "group").mkdir()
        (root / "group/cpu.max").write_text(quota)
    return root


def test_ranks_share_whole_cores(tmp_path: Path) -> None:
    root = _machine(tmp_path, {cpu: f"{cpu % 3},{cpu % 3 + 3}" for cpu in range(6)})
    assert [share(range(6), rank, 2, root) for rank in range(2)] == [[0, 3], [1, 2, 4, 5]]
    assert [share(range(6), rank, 3, root) for rank in range(3)] == [[0, 3], [1, 4], [2, 5]]
    assert [share([1, 2, 4], rank, 2, root) for rank in range(2)] == [[1, 4], [2]]
    assert share(range(6), 0, 4, root) == []


def test_no_more_cores_than_cpu_time(tmp_path: Path) -> None:
    root = _machine(tmp_path, {cpu: str(cpu) for cpu in range(8)}, quota="400000 100000")
    assert [share(range(8), rank, 2, root) for rank in range(2)] == [[0, 1], [4, 5]]
