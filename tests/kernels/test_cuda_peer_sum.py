"""The sum through memory that several cards see: how ranks meet, and processes that share a card."""

import threading

import mlx.core as mx
import pytest

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr.runtime.hosts.cuda.nvrtc import compile_cubin
from mlxr.runtime.hosts.cuda.parallel import meet_peers as meeting
from mlxr.runtime.hosts.cuda.parallel.meet_peers import NoPeersError, meet_peers
from mlxr.runtime.hosts.cuda.parallel.peer_sums import kernel_text
from mlxr_tests.has_nvrtc import has_nvrtc
from mlxr_tests.peer_rank import DTYPES
from mlxr_tests.ranks import run_ranks
from mlxr_tests.thread_ranks import Meeting, ThreadCollectives


@pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC; pip install nvidia-cuda-nvrtc")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernel_compiles(dtype: mx.Dtype) -> None:
    flags = ("--std=c++17", "--device-as-default-execution-space", "--gpu-architecture=sm_90a")
    assert compile_cubin("peer_sum", kernel_text("peer_sum", dtype, 1, 3), flags)


@pytest.mark.skipif(not has_cuda(), reason="no NVIDIA GPU")
@pytest.mark.parametrize("count", [2, 4])
def test_processes_that_share_a_card(count: int) -> None:
    outputs = run_ranks(count, ["-m", "mlxr_tests.peer_rank", str(count)], 120)
    assert [output.code for output in outputs] == [0] * count, outputs
    assert len({output.stdout for output in outputs}) == 1


def meet(monkeypatch: pytest.MonkeyPatch, refusing: set[int], lost: bool = False) -> list[str]:
    """What two ranks, threads, come to: nothing, or why their cards do not see each other's memory."""
    memory: dict[int, bytearray] = {}
    collectives, found = Meeting(2, 1, "calls"), ["", ""]
    local = threading.local()

    class Memory:
        def __init__(self, size_bytes: int) -> None:
            if local.rank in refusing:
                raise HostError("no memory")
            self.address = (1 + local.rank) << 32
            memory[self.address] = bytearray(size_bytes)

        def clear(self) -> None:
            memory[self.address] = bytearray(len(memory[self.address]))

        def handle(self) -> bytes:
            return self.address.to_bytes(meeting.HANDLE_BYTES, "little")

    def write(address: int, data: bytes) -> None:
        start = address % (1 << 32)
        memory[address - start][start : start + len(data)] = bytes(len(data)) if lost and local.rank else data

    monkeypatch.setattr(meeting, "PeerMemory", Memory)
    monkeypatch.setattr(meeting, "open_memory", lambda handle: int.from_bytes(handle, "little"))
    monkeypatch.setattr(meeting, "write_memory", write)
    monkeypatch.setattr(meeting, "read_memory", lambda address, size: bytes(memory[address][:size]))

    def run(rank: int) -> None:
        local.rank = rank
        try:
            addresses = meet_peers(ThreadCollectives(collectives, rank).all_sum, rank, 2, 4096)
        except NoPeersError as error:
            found[rank] = str(error)
        else:
            assert addresses == (1 << 32, 2 << 32)
            assert not any(memory[addresses[rank]])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_ranks_come_to_the_same_conclusion(monkeypatch: pytest.MonkeyPatch) -> None:
    assert meet(monkeypatch, set()) == ["", ""]
    assert meet(monkeypatch, {1}) == ["rank 1 of the stage: no memory"] * 2
    lost = "rank 0 of the stage: what rank 1 of the stage wrote to its card's memory did not arrive"
    assert meet(monkeypatch, set(), lost=True) == [lost] * 2
    monkeypatch.setenv(meeting.SETTING, "0")
    assert meet(monkeypatch, set()) == ["MLXR_PEER_MEMORY=0"] * 2
