"""The machine's read bandwidth, measured by a small C program: the limit of decoding."""

import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("bandwidth.c")
_MEBIBYTES = 1024


class Bandwidth:
    """The compiled program; `measure` may be called between other measurements."""

    def __init__(self, threads: int) -> None:
        """Compiles it with the compiler that the cpu host would use.

        Raises:
            SystemExit: there is no compiler.
        """
        from mlxr.runtime.hosts.cpu.toolchain import find_compilers

        self._threads = threads
        self._folder = tempfile.TemporaryDirectory(prefix="mlxr-bandwidth-")
        self._program = Path(self._folder.name) / "bandwidth"
        for compiler in find_compilers():
            flags = [*compiler.extra, "-std=gnu11", "-O3", "-march=native", "-Wno-psabi", "-pthread"]
            command = [*compiler.command, *flags, str(SOURCE), "-o", str(self._program)]
            done = subprocess.run(command, check=False, capture_output=True)
            if done.returncode == 0:
                return
        raise SystemExit("no C compiler built bandwidth.c; pip install ziglang")

    def measure(self) -> float:
        """Bytes per second, the best of one second."""
        command = [str(self._program), str(self._threads), str(_MEBIBYTES), "1"]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
