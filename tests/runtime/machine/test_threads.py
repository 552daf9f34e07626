"""How many threads: affinity, control groups of both kinds, cores, and what the user may ask for."""

from pathlib import Path

import pytest

from mlxr.compiler.errors import HostError
from mlxr.runtime.machine import threads
from mlxr.runtime.machine.threads import cgroup_cpus, num_threads, usable_cpus

V2 = "33 24 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "31 23 0:27 {0} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
OTHER = "22 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a root folder of a machine with 8 CPUs."""
    monkeypatch.setattr(threads, "_affinity", lambda: set(range(8)))
    monkeypatch.setattr(threads.sys, "platform", "linux")

    def make(files: dict[str, str], group: str = "0::/", mounts: str = V2) -> Path:
        said = {"proc/self/cgroup": group, "proc/self/mountinfo": f"{OTHER}\n{mounts}"}
        for name, text in (said | files).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return tmp_path

    return make


def siblings(*groups: str) -> dict[str, str]:
    lists = [group for group in groups for _ in group.split(",")]
    cpus = [int(cpu) for group in groups for cpu in group.split(",")]
    path = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return {path.format(cpu): group for cpu, group in zip(cpus, lists, strict=True)}


def test_without_limits_every_cpu_is_a_core(machine) -> None:
    root = machine({})
    assert cgroup_cpus(root) is None
    assert usable_cpus(root) == num_threads(None, root) == 8


def test_two_threads_of_a_core_count_once_unless_asked_for(machine) -> None:
    root = machine(siblings("0,4", "1,5", "2,6", "3,7"))
    assert num_threads(None, root) == 4
    assert num_threads(8, root) == 8


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 8), ("250000 100000", 3), ("50000 100000", 1), ("200000", 2), ("9e9", 8)]
)
def test_the_quota_of_control_groups_v2(machine, quota: str, expected: int) -> None:
    root = machine({"sys/fs/cgroup/cpu.max": quota})
    assert usable_cpus(root) == num_threads(None, root) == expected


def test_the_groups_around_it_count_too(machine) -> None:
    folder = "sys/fs/cgroup/user.slice"
    files = {f"{folder}/cpu.max": "300000 100000", f"{folder}/shell/cpu.max": "max 100000"}
    assert usable_cpus(machine(files, "0::/user.slice/shell/deep")) == 3


def test_the_quota_of_control_groups_v1(machine) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/docker/1f"
    files = {f"{folder}/cpu.cfs_quota_us": "150000", f"{folder}/cpu.cfs_period_us": "100000"}
    group = "5:memory:/docker/1f\n4:cpu,cpuacct:/docker/1f\n0::/"
    assert usable_cpus(machine(files, group, V1.format("/"))) == 2


def test_v1_without_a_limit(machine) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct"
    files = {f"{folder}/cpu.cfs_quota_us": "-1", f"{folder}/cpu.cfs_period_us": "100000"}
    assert usable_cpus(machine(files, "4:cpu,cpuacct:/", V1.format("/"))) == 8


def test_inside_a_container_its_own_group_is_what_is_mounted(machine) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct"
    files = {f"{folder}/cpu.cfs_quota_us": "400000", f"{folder}/cpu.cfs_period_us": "100000"}
    root = machine(files, "4:cpu,cpuacct:/docker/1f", V1.format("/docker/1f"))
    assert usable_cpus(root) == 4


def test_a_group_beyond_what_is_mounted_falls_back_on_its_root(machine) -> None:
    root = machine({"sys/fs/cgroup/cpu.max": "100000 100000"}, "0::/../../elsewhere")
    assert usable_cpus(root) == 1


@pytest.mark.parametrize("files", [{}, {"proc/self/cgroup": "nonsense", "proc/self/mountinfo": "a b - c\n1 2 3"}])
def test_systems_that_say_nothing(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroup_cpus(tmp_path) is None
    assert num_threads(None, tmp_path) >= 1


@pytest.mark.parametrize("wanted", [0, -1, 9, 10**9, True, 1.5, "2"])
def test_numbers_that_cannot_be(machine, wanted: object) -> None:
    with pytest.raises(
        HostError, match=r"number of threads is .*this process may use 8 CPUs: give a number from 1 to 8"
    ):
        num_threads(wanted, machine({}))  # type: ignore[arg-type]


def test_one_cpu(machine) -> None:
    root = machine({"sys/fs/cgroup/cpu.max": "20000 100000"})
    with pytest.raises(HostError, match=r"may use 1 CPU: give 1$"):
        num_threads(2, root)


def test_this_machine() -> None:
    assert 1 <= num_threads() <= usable_cpus()
