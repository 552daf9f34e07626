"""Compiles the units of a program side by side, and links them. Objects of kernels apart are kept in the cache."""

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from mlxr.runtime.hosts.cpu.processor import processor_identity
from mlxr.runtime.hosts.cpu.toolchain import Compiler, user_flags
from mlxr.runtime.hosts.cpu.units import Unit, units_of
from mlxr.runtime.hosts.library_cache import LibraryCache, digest
from mlxr.runtime.hosts.run_compiler import run_compiler
from mlxr.runtime.machine.threads import usable_cpus

Tick = Callable[[str, float], None]
"""Called repeatedly while a compiler runs, with the compiler's name and the seconds so far."""
OUTPUT = "model.so"
"""The library's file name."""
_TICK_S = 0.5


class BuildError(Exception):
    """A compiler failed; the message has its command and what it printed."""


class _StoppedError(Exception):
    """The compilation was stopped: another unit has failed, or the user has interrupted it."""


class UnitCompiler:
    """Compiles one program in a folder.

    Args:
        compiler: the compiler.
        work: the folder, where it leaves all that it makes.
        cache: where objects are kept.
        folder: the cache's folder; None: it cannot be used.
        tick: called while compilers run.
    """

    def __init__(
        self, compiler: Compiler, work: Path, cache: LibraryCache, folder: Path | None, tick: Tick | None
    ) -> None:
        self._compiler, self._work, self._tick = compiler, work, tick
        self._cache, self._folder = cache, folder
        self._stop = threading.Event()

    def build(self, text: str) -> Path:
        """The library of a program's text. With flags of the user, which may ask for anything, it is one unit.

        Raises:
            BuildError: the compiler failed.
            OSError: the folder cannot be written.
        """
        units = [Unit("model", text)] if user_flags() else units_of(text)
        if len(units) == 1 and not self._compiler.is_linked_apart:
            (self._work / "model.c").write_text(text, "utf-8")
            self._watched([partial(self._run, self._compiler.build_command("model.c", output=OUTPUT))])
        else:
            paths: list[Path] = [Path()] * len(units)

            def compile_unit(index: int) -> None:
                paths[index] = self._object(units[index], is_kept=index > 0)

            self._watched([partial(compile_unit, index) for index in range(len(units))])
            self._run(self._compiler.build_command(*map(str, paths), output=OUTPUT))
        if not (self._work / OUTPUT).is_file():
            raise BuildError(f"{' '.join(self._compiler.command)}\nit made no library")
        return self._work / OUTPUT

    def _object(self, unit: Unit, *, is_kept: bool) -> Path:
        """The object of a unit, from the cache if it is kept there."""
        source, output = f"{unit.name}.c", f"{unit.name}.o"
        command = self._compiler.object_command(source, output)
        target = None
        if is_kept and self._folder is not None:
            key = digest(unit.text, *command, self._compiler.identity, processor_identity())
            target = self._folder / f"{unit.name}-{key}.o"
            if self._cache.read(target) is not None:
                return target
        (self._work / source).write_text(unit.text, "utf-8")
        self._run(command)
        if target is not None:
            with contextlib.suppress(OSError):  # nor can the library, which comes next: a note says so then
                self._cache.publish(self._work / output, target)
        return Path(output)

    def _run(self, command: list[str]) -> None:
        failure = run_compiler(command, self._work, cut=True, tick=self._look)
        if failure is not None:
            raise BuildError(f"{' '.join(command)}\n{failure}")

    def _look(self, _seconds: float) -> None:
        if self._stop.is_set():
            raise _StoppedError

    def _watched(self, tasks: list[Callable[[], None]]) -> None:
        """Does the tasks in threads, as many at a time as there are processors. Ends all compilers when one fails."""
        started = time.monotonic()
        with ThreadPoolExecutor(max_workers=max(1, min(len(tasks), usable_cpus()))) as pool:
            futures = [pool.submit(task) for task in tasks]
            try:
                waiting = set(futures)
                while waiting:
                    done, waiting = wait(waiting, timeout=_TICK_S, return_when="FIRST_COMPLETED")
                    for future in done:
                        future.result()
                    if not done and self._tick is not None:
                        self._tick(self._compiler.name, time.monotonic() - started)
            except BaseException:
                self._stop.set()
                for future in futures:
                    future.cancel()
                raise
