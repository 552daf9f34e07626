"""Kernels that are compiled while their artifact is, with a stand-in for NVIDIA's compiler."""

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mlxr.compiler.artifact import Program
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import HostError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.targets.early import Early
from mlxr.runtime.hosts.cuda import build, build_ahead, recorded_batch
from mlxr.runtime.hosts.cuda.build import build_cubin, cuda_source, with_prelude
from mlxr.runtime.hosts.cuda.build_ahead import building_ahead
from mlxr_tests.specs import small_spec

CARD = "sm_90a"


class Compiler:
    """Stands in for NVRTC. Nothing is ready before `may_end` is set."""

    def __init__(self) -> None:
        self.texts, self.may_end, self.has_begun = list[str](), threading.Event(), threading.Event()

    def __call__(self, name: str, source: str, flags: tuple[str, ...]) -> bytes:
        """Compiles a text."""
        self.texts.append(source)
        self.has_begun.set()
        assert self.may_end.wait(30)
        if "mistake" in source:
            raise HostError(f"kernel {name} does not compile")
        return source.encode()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compiler:
    """In the place of the real one, with an empty cache."""
    found = Compiler()
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(build, "compile_cubin", found)
    monkeypatch.setattr(build, "find_nvfatbin", lambda: None)
    monkeypatch.setattr(build, "compressed", lambda cubin, _: cubin)
    monkeypatch.setattr(build, "version", lambda: (13, 0))
    for module in (build_ahead, recorded_batch):
        monkeypatch.setattr(module, "architecture", lambda: CARD)
    return found


def test_kernels_are_compiled_while_their_artifact_is(compiler: Compiler) -> None:
    """Whoever wants one waits for it; all texts are those that the host asks for. None waits for the last one."""
    with building_ahead() as begin:

        def take(program: Program, sources: Mapping[str, str]) -> None:
            assert compiler.has_begun.wait(30), "before the program was there"
            begin.program(program, sources, "model")

        early = Early("metal", take, begin.kernel)
        artifact = compile_spec(small_spec(), Geometry.of(step_threads=512), early=early).artifact
        assert compiler.has_begun.wait(30)
        compiler.may_end.set()
        program = artifact.plan.program("metal")
        texts = {k.name: cuda_source(k, *artifact.kernel_sections(k.name, "metal")) for k in program.kernels}
        texts |= {entry.name: with_prelude(artifact.files[entry.file]) for entry in program.step_kernels}
        assert program.step_kernels
        for name, text in texts.items():
            assert build_cubin(name, text, CARD) == text.encode()
    assert {*compiler.texts} - {*texts.values()} <= {text for text in compiler.texts if "mlxr_place" in text}
    assert len(compiler.texts) == len({*compiler.texts}), "each once"


def test_a_kernel_begins_when_it_has_its_text(compiler: Compiler) -> None:
    """Before there is a program."""
    compiler.may_end.set()
    artifact = compile_spec(small_spec()).artifact
    kernel = artifact.plan.program("metal").kernels[0]
    wanted, end = cuda_source(kernel, *artifact.kernel_sections(kernel.name, "metal")), time.monotonic() + 30
    with building_ahead() as begin:
        begin.kernel(kernel, artifact.files[kernel.file])
        while wanted not in compiler.texts and time.monotonic() < end:
            time.sleep(0.01)
    assert wanted in compiler.texts


@pytest.mark.parametrize("text", ["text", "mistake"])
def test_who_wants_what_is_being_compiled_waits(compiler: Compiler, text: str) -> None:
    found = list[bytes | str]()

    def want() -> None:
        try:
            found.append(build_cubin("k", text, CARD))
        except HostError as error:
            found.append(str(error))

    threads = [threading.Thread(target=want) for _ in range(3)]
    threads[0].start()
    assert compiler.has_begun.wait(30)
    for thread in threads[1:]:
        thread.start()
    compiler.may_end.set()
    for thread in threads:
        thread.join()
    assert found == [b"text" if text == "text" else "kernel k does not compile"] * 3
    assert len(compiler.texts) == 1 or text == "mistake"
    assert not build._building


def test_what_has_not_begun_when_the_model_is_not_wanted_never_does(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(False, cancel_futures=cancel_futures)
            compiler.may_end.set()
            super().shutdown(wait)

    monkeypatch.setattr(build_ahead, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(build_ahead, "usable_cpus", lambda: 2)
    with pytest.raises(ValueError, match="no memory"), building_ahead() as begin:
        early = Early("metal", lambda program, sources: begin.program(program, sources, "model"))
        compile_spec(small_spec(), early=early)
        assert compiler.has_begun.wait(30)
        raise ValueError("no memory")
    assert len(compiler.texts) <= 2
