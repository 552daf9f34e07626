"""Texts that processes compile, by a library that stands for NVRTC: its cubin is the text and who has it."""

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mlxr.runtime.hosts.cuda import compilers as compilers_module
from mlxr.runtime.hosts.cuda.compilers import Compilers
from mlxr_tests.shared_library import shared_library

LIBRARY = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct program { char cubin[400], log[400]; size_t size; };
typedef struct program* P;
int nvrtcCreateProgram(P* p, const char* text, const char* name, int n, void* headers, void* names) {
  *p = calloc(1, sizeof(**p));
  (*p)->size = snprintf((*p)->cubin, 400, "%s%c%d", text, 0, getpid());
  snprintf((*p)->log, 400, " %s: ", name);
  return strstr(text, "refused") ? 3 : 0;
}
int nvrtcCompileProgram(P p, int n, const char** options) {
  for (int i = 0; i < n; i++) strcat(strcat(p->log, options[i]), ";");
  return strstr(p->cubin, "mistake") ? 6 : 0;
}
int nvrtcGetProgramLogSize(P p, size_t* n) { return *n = strlen(p->log) + 1, 0; }
int nvrtcGetProgramLog(P p, char* to) { return strcpy(to, p->log), 0; }
int nvrtcGetCUBINSize(P p, size_t* n) { return *n = p->size, 0; }
int nvrtcGetCUBIN(P p, char* to) { return memcpy(to, p->cubin, p->size), 0; }
int nvrtcDestroyProgram(P* p) { return free(*p), 0; }
"""
OPTIONS = ("--one", "--two=ü")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("a compiler")
    (folder / "nvrtc.c").write_text(LIBRARY)
    return shared_library(folder / "nvrtc.c", folder / "libnvrtc.so.13", "-w")


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compilers]:
    """They leave no process."""
    found, begun = Compilers(), list[subprocess.Popen[bytes]]()

    def begin(python: str) -> compilers_module._Worker:
        worker = own(python)
        begun.append(worker.process)
        return worker

    own = compilers_module._begin
    monkeypatch.setattr(compilers_module, "_begin", begin)
    yield found
    assert not found._resting
    for process in begun:
        process.wait(30)


def test_processes_give_what_the_library_does(library: ctypes.CDLL, compilers: Compilers) -> None:
    """One for each thread, which are asked again; within this process where nobody wants any."""
    texts = [f"text {i}\n{{ü}}".encode() for i in range(12)]
    with compilers.wanted(), compilers.wanted(), ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda text: compilers.compile(library, "k", text, OPTIONS), texts))
        assert 1 <= len(compilers._resting) <= 3
    assert [(status, log) for status, _, log in answers] == [(0, "k.cu: --one;--two=ü;")] * len(texts)
    cubins = [cubin.split(b"\0") for _, cubin, _ in answers]
    assert [text for text, _ in cubins] == texts
    assert 1 <= len({process for _, process in cubins} - {str(os.getpid()).encode()}) <= 3
    assert compilers.compile(library, "k", b"x", ()) == (0, f"x\0{os.getpid()}".encode(), "k.cu:")


def test_a_library_is_told_from_another_of_its_name(library: ctypes.CDLL, tmp_path: Path) -> None:
    shutil.copy(library._name, tmp_path)
    other = ctypes.CDLL(str(tmp_path / Path(library._name).name))
    assert compilers_module._path_of(library) == library._name
    assert compilers_module._path_of(other) == other._name


def test_failures_are_told(library: ctypes.CDLL, compilers: Compilers) -> None:
    with compilers.wanted():
        assert compilers.compile(library, "k", b"a mistake", OPTIONS) == (6, b"", "k.cu: --one;--two=ü;")
        assert compilers.compile(library, "k", b"refused", OPTIONS) == (3, b"", "")
        assert len(compilers._resting) == 1


@pytest.mark.parametrize("kind", ["killed", "none", "program", "frozen", "unknown"])
def test_what_no_process_can_do_is_done_here(
    library: ctypes.CDLL, compilers: Compilers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """One was killed; or none can begin; or a program contains Python, which must not be begun once more."""
    program, began = tmp_path / ("python" if kind == "frozen" else "server"), tmp_path / "began"
    program.write_text(f"#!/bin/sh\ntouch '{began}'")
    program.chmod(0o755)
    with compilers.wanted():
        if kind == "killed":
            compilers.compile(library, "k", b"x", ())
            compilers._resting[0].process.send_signal(signal.SIGKILL)
            compilers._resting[0].process.wait()
        else:
            executable = {"none": tmp_path / "python3", "unknown": None}.get(kind, program)
            monkeypatch.setattr("sys.executable", executable and str(executable))
            monkeypatch.setattr("sys.frozen", kind == "frozen", raising=False)
        assert compilers.compile(library, "k", b"y", ()) == (0, f"y\0{os.getpid()}".encode(), "k.cu:")
    assert not began.exists()
