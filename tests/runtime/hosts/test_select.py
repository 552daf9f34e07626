"""Which host a name means, and what is found out before anything is loaded."""

import mlx.core as mx
import pytest

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cpu import toolchain
from mlxr.runtime.hosts.cuda import device
from mlxr.runtime.hosts.select import array_host, check_host, resolve_host

NO_METAL = pytest.mark.skipif(mx.metal.is_available(), reason="there is a GPU here")


def test_auto_is_metal_or_cuda_else_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def auto(*targets: str) -> str:
        return resolve_host("auto", targets or None).name

    monkeypatch.setattr(device, "has_cuda", lambda: False)
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    assert auto() == "metal"
    assert auto("cpu") == "cpu"
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    assert auto() == auto("metal") == "cpu"
    monkeypatch.setattr(device, "has_cuda", lambda: True)
    assert auto() == "cuda"
    assert auto("cpu") == "cpu"


def test_a_host_that_takes_arrays() -> None:
    assert array_host("reference").name == "reference"
    with pytest.raises(HostError, match="host cpu takes its weights from files only"):
        array_host("cpu")


def test_unknown_hosts() -> None:
    with pytest.raises(HostError, match="there is no host 'gpu'; hosts are auto, metal, cuda, cpu, sim, reference"):
        check_host("gpu")


@NO_METAL
@pytest.mark.parametrize(("name", "targets"), [("cpu", ["metal"]), ("auto", ["metal"]), ("sim", ["cpu"])])
def test_artifacts_without_the_target(name: str, targets: list[str]) -> None:
    missing = "cpu" if name != "sim" else "metal"
    with pytest.raises(
        HostError, match=f"needs an artifact with target {missing}; this one has {targets[0]}"
    ) as caught:
        check_host(name, targets)  # type: ignore[arg-type]
    assert ("--host auto" in str(caught.value)) == (name != "auto")


def test_reference_needs_no_target() -> None:
    check_host("reference", [])


@NO_METAL
def test_metal_without_a_gpu() -> None:
    with pytest.raises(HostError, match="needs an Apple silicon Mac; use --host cpu here"):
        check_host("metal")


def test_only_cpu_takes_threads() -> None:
    check_host("cpu", threads=1)
    with pytest.raises(HostError, match="the number of threads is for host cpu; host reference takes none"):
        check_host("reference", threads=1)
    with pytest.raises(HostError, match="the number of threads is 0; this process may use"):
        check_host("cpu", threads=0)


@NO_METAL
def test_auto_without_a_compiler_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(toolchain, "zig_executable", lambda: None)
    with pytest.raises(HostError, match=r"needs a C compiler and found none .* pip install 'mlxr\[cpu\]'"):
        check_host("auto")
