"""What is free: of a Linux machine, in control groups of both versions, on GPUs, and what this machine really says."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from mlxr.runtime.memory import free_memory
from mlxr.runtime.memory.free_memory import FreeMemory, MachineMemory, gpu_memory, metal_memory

MIB = 1 << 20
MEMINFO = {"proc/meminfo": "MemTotal:  16384 kB\nMemFree:  1024 kB\nMemAvailable:  8192 kB\nCached:  9999 kB"}
V2 = {
    "proc/self/cgroup": "0::/pod/model",
    "proc/self/mountinfo": "33 24 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
}
V1 = {
    "proc/self/cgroup": "4:memory:/model\n0::/",
    "proc/self/mountinfo": "31 23 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
}


def read(root: Path, files: dict[str, str]) -> FreeMemory:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return MachineMemory(root).read()


def group_v2(folder: str, limit: str, used: int, high: str = "max", files: int = 0) -> dict[str, str]:
    return {
        f"sys/fs/cgroup/{folder}memory.max": limit,
        f"sys/fs/cgroup/{folder}memory.high": high,
        f"sys/fs/cgroup/{folder}memory.current": str(used),
        f"sys/fs/cgroup/{folder}memory.stat": f"anon 5\nactive_file {files // 4}\ninactive_file {files - files // 4}",
    }


@pytest.mark.parametrize(
    ("files", "free", "total"),
    [
        (MEMINFO, 8 * MIB, 16 * MIB),
        ({"proc/meminfo": "MemTotal: 16384 kB\nMemFree: 1024 kB\nCached: 2048 kB"}, 3 * MIB, 16 * MIB),
        (MEMINFO | V2, 8 * MIB, 16 * MIB),
        (MEMINFO | V2 | group_v2("pod/model/", "max", 15 * MIB), 8 * MIB, 16 * MIB),
        (MEMINFO | V2 | group_v2("pod/model/", str(4 * MIB), 3 * MIB), MIB, 4 * MIB),
        (MEMINFO | V2 | group_v2("pod/model/", str(4 * MIB), 3 * MIB, files=2 * MIB), 3 * MIB, 4 * MIB),
        (MEMINFO | V2 | group_v2("pod/model/", "max", 3 * MIB, high=str(5 * MIB)), 2 * MIB, 5 * MIB),
        (
            MEMINFO | V2 | group_v2("pod/model/", str(4 * MIB), MIB) | group_v2("pod/", str(6 * MIB), 5 * MIB),
            MIB,
            6 * MIB,
        ),
        (MEMINFO | V2 | group_v2("pod/model/", str(4 * MIB), 5 * MIB), 0, 4 * MIB),
        (
            MEMINFO
            | V1
            | {
                "sys/fs/cgroup/memory/model/memory.limit_in_bytes": str(4 * MIB),
                "sys/fs/cgroup/memory/model/memory.usage_in_bytes": str(3 * MIB),
                "sys/fs/cgroup/memory/model/memory.stat": f"active_file 1\ntotal_active_file {2 * MIB}",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            3 * MIB,
            4 * MIB,
        ),
    ],
)
def test_linux(tmp_path: Path, files: dict[str, str], free: int, total: int) -> None:
    memory = read(tmp_path, files)
    assert (memory.free_bytes, memory.total_bytes) == (free, total)


def test_a_group_that_disappears_limits_nothing(tmp_path: Path) -> None:
    files = MEMINFO | V2 | group_v2("pod/model/", str(4 * MIB), 3 * MIB)
    read(tmp_path, files)
    memory = MachineMemory(tmp_path)
    (tmp_path / "sys/fs/cgroup/pod/model/memory.current").unlink()
    assert memory.read().free_bytes == 8 * MIB


def test_systems_that_say_nothing(tmp_path: Path) -> None:
    memory = MachineMemory(tmp_path).read()
    assert memory.free_bytes == memory.total_bytes > 0


def test_the_limit_of_the_address_space() -> None:
    """A process of its own has 1 GiB more than it uses; of that, it takes 300 MiB."""
    program = f"""
import resource
from mlxr.runtime.memory.free_memory import MachineMemory
from pathlib import Path
used = int(Path("/proc/self/statm").read_text().split()[0]) * {resource.getpagesize()}
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), -1))
memory = MachineMemory()
before = memory.read()
block = bytearray(300 << 20)
print(before.free_bytes >> 20, (before.free_bytes - memory.read().free_bytes) >> 20, before.owner)
"""
    if not Path("/proc/self/statm").is_file():
        pytest.skip("only Linux counts the address space")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()
    assert 950 <= int(told[0]) <= 1024 and 300 <= int(told[1]) <= 310
    assert "address space" in " ".join(told[2:])


def test_this_machine() -> None:
    memory = MachineMemory().read()
    assert 0 < memory.free_bytes <= memory.total_bytes


def test_a_gpu_with_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What MLX keeps for later arrays is free for them. A card that says nothing is not asked."""
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    monkeypatch.setattr(mx, "get_cache_memory", lambda: 3)
    monkeypatch.setattr(mx, "device_info", lambda *_: {"total_memory": 100, "free_memory": 40})
    assert gpu_memory() == FreeMemory(43, 100, "this GPU")
    monkeypatch.setattr(mx, "device_info", lambda *_: {})
    assert gpu_memory() is None


def test_a_mac_gives_its_gpu_a_part_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "device_info", lambda *_: {"max_recommended_working_set_size": 70})
    monkeypatch.setattr(mx, "get_active_memory", lambda: 30)
    assert metal_memory(FreeMemory(20, 100)) == FreeMemory(20, 100)
    assert metal_memory(FreeMemory(60, 100)) == FreeMemory(40, 70, "this Mac's GPU")


def test_what_macos_counts_has_the_size_of_its_c_structure() -> None:
    assert free_memory.ctypes.sizeof(free_memory._VmStatistics) == 4 * 38, "HOST_VM_INFO64_COUNT"
