"""Runs tests of host cpu in an aarch64 Python under qemu-user: kernels are ARM code, as on a machine with such a CPU.

    python tests/on_arm.py                                    # what `make test-arm` runs
    python tests/on_arm.py tests/kernels/cpu/test_simd.py     # other tests, or any options of pytest

An aarch64 Python of this system's packages, with NumPy, MLX and pytest of PyPI, is put into the cache, once. C is
compiled by the zig of this machine, which the emulated process starts as `cc`. QEMU_CPU names another CPU than `max`,
which has everything.

What is needed: qemu-aarch64 (Debian's qemu-user), apt-get, dpkg-deb and the ziglang wheel. Where something is missing,
a line says what, and nothing is run.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from mlxr.runtime.cache_folder import cache_folder  # noqa: E402 (found by the line above)
from mlxr.runtime.hosts.run_compiler import zig_executable  # noqa: E402

PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6", "libc6", "binutils")
WHEELS = (
    *("gguf", "hypothesis", "jinja2", "llguidance", "mlx[cpu]", "networkx", "numpy", "pydantic", "pygments"),
    *("pytest", "pytest-xdist", "pyyaml", "safetensors", "sentencepiece", "tokenizers"),
)
PLATFORMS = [f"manylinux_2_{minor}_aarch64" for minor in (17, 24, 26, 27, 28, 31, 34, 35)] + ["manylinux2014_aarch64"]
DEFAULT = (
    *("-n", "auto", "--dist", "worksteal", "--all", "tests/end_to_end/test_instruction_sets.py"),
    *(f"tests/kernels/cpu/test_{name}.py" for name in ("simd", "math", "formats", "instruction_sets")),
)

# GCC's names of CPUs are not zig's: cc is told those of runtime/hosts/cpu/instruction_sets.py.
CC = """#!/bin/sh
for word do
    shift
    case $word in
        -march=armv8-a) word=-mcpu=generic ;;
        -march=armv8.2-a+*) word=-mcpu=generic+${word#*+} ;;
        -mcpu=native) word=-mcpu=generic ;;
        -g0) continue ;;
    esac
    set -- "$@" "$word"
done
exec ZIG cc -target aarch64-linux-gnu.2.34 -fno-sanitize=undefined -fno-stack-protector "$@"
"""


class MissingError(Exception):
    """Something that this machine lacks."""


def run(*command: str | Path, **environment: str) -> str:
    """Runs a command; its output.

    Raises:
        MissingError: it failed.
    """
    done = subprocess.run(
        [str(word) for word in command], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise MissingError(f"{Path(command[0]).name} {command[1]} failed: {' '.join(said)}")
    return done.stdout


def unpack_packages(root: Path, work: Path) -> None:
    """Unpacks this distribution's arm64 packages and what they need, by an apt that knows of no installed ones."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    (work / "apt.conf").write_text(
        'APT { Architecture "arm64"; Architectures { "arm64"; }; Sandbox::User ""; Install-Recommends "false"; };\n'
        f'Dir {{ State "{work}/state"; State::status "{work}/status"; Cache "{work}/cache"; }};\n'
    )
    configured = {"APT_CONFIG": str(work / "apt.conf")}
    run("apt-get", "update", "-qq", **configured)
    run("apt-get", "install", "--yes", "--download-only", "-qq", *PACKAGES, **configured)
    for package in sorted((work / "cache/archives").glob("*.deb")):
        run("dpkg-deb", "-x", package, root)


def make_python(root: Path) -> None:
    """Fills a folder with an aarch64 Python, its packages, and the programs that tests start."""
    with tempfile.TemporaryDirectory(prefix="mlxr-arm-") as work:
        unpack_packages(root, Path(work))
    version = (root / "usr/bin/python3").readlink().name.removeprefix("python")
    only = [f"--platform={platform}" for platform in PLATFORMS]
    command = ("-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary=:all:", *only)
    run(sys.executable, *command, f"--python-version={version}", f"--target={root / 'site'}", *WHEELS)


def emulated(root: Path) -> list[str]:
    """The words that start an ARM program."""
    qemu = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if qemu is None:
        raise MissingError("there is no qemu-aarch64 (apt-get install qemu-user)")
    return [qemu, "-L", str(root)]


def write_programs(root: Path, start: list[str]) -> Path:
    """The programs that tests start, which this machine runs: cc, and an objdump that knows ARM."""
    zig = zig_executable()
    if zig is None:
        raise MissingError("the ziglang wheel is not installed")
    programs = root / "programs"
    programs.mkdir(exist_ok=True)
    objdump = shlex.join([*start, str(root / "usr/bin/objdump")])
    for name, text in (("cc", CC.replace("ZIG", shlex.quote(zig))), ("objdump", f'#!/bin/sh\nexec {objdump} "$@"\n')):
        path = programs / name
        if not path.exists() or path.read_text() != text:  # what is compiled is cached by this file's time
            path.write_text(text)
            path.chmod(0o755)
    return programs


def arm_python() -> Path:
    """The folder of the Python, made now or before.

    Raises:
        MissingError: it cannot be made here.
    """
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise MissingError(f"there is no {program}")
    key = hashlib.sha256(repr((PACKAGES, WHEELS)).encode()).hexdigest()[:12]
    folder = cache_folder("arm") / f"python-{key}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as work:
            made = Path(work) / "root"
            made.mkdir()
            make_python(made)
            made.rename(folder)
    return folder


def main(arguments: list[str]) -> int:
    """Runs pytest; its exit code, or 0 where that cannot be."""
    try:
        start = emulated(Path())  # before anything is fetched
        root = arm_python()
        start = emulated(root)
        programs = write_programs(root, start)
    except MissingError as error:
        print(f"on_arm: nothing is run: {error}")
        return 0
    environment = {
        "PYTHONHOME": str(root / "usr"),
        "PYTHONPATH": os.pathsep.join(map(str, (root / "site", ROOT / "src", ROOT / "tests/support"))),
        "PYTHONPYCACHEPREFIX": str(root / "pycache"),
    }
    for_qemu = [word for name, value in environment.items() for word in ("-E", f"{name}={value}")]
    python = [*start, *for_qemu, str(root / "usr/bin/python3")]
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    kept = {name: value for name, value in os.environ.items() if name not in {"CC", "MLXR_CPU_CFLAGS"}}
    chosen = arguments or list(DEFAULT)
    print(f"on_arm: {run(*python, '-c', 'import platform as p; print(p.machine(), p.python_version())').strip()}")
    return subprocess.run(
        [*python, "-m", "pytest", "-p", "no:cacheprovider", *chosen],
        cwd=ROOT,
        env={"QEMU_CPU": "max"} | kept | {"PATH": path},
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
