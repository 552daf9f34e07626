"""Runs tests of host cpu in an aarch64 Python under qemu-user: kernels are ARM code, as on a machine with such a CPU.

    python tests/on_arm.py                                    # what `make test-arm` runs
    python tests/on_arm.py tests/kernels/cpu/test_simd.py     # other tests, or any options of pytest

An aarch64 Python of this system's packages, with NumPy, MLX and pytest of PyPI, is put into the cache, once. C is
compiled by the zig of this machine, which the emulated process starts as `cc`; MLXR_ARM_CC=aarch64-linux-gnu-gcc has
GCC compile it, as on most ARM machines with Linux. QEMU_CPU names another CPU than `max`, which has everything:
cortex-a72 has NEON alone, neoverse-n1 dotprod too. Their features are what `-mcpu=native` means.

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
from collections.abc import Sequence
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
KERNELS = tuple(
    f"tests/kernels/cpu/test_{name}.py"
    for name in (
        *("cache", "projection", "experts", "families", "float_rows", "gemm", "hosts", "rows", "instruction_sets"),
    )
)
FUNCTIONS = tuple(f"tests/kernels/cpu/test_{name}.py" for name in ("simd", "math", "formats"))
TOGETHER = ("-q", "-n", "auto", "--dist", "worksteal")
RUNS: tuple[tuple[str, tuple[str, ...]], ...] = (  # CPUs and pytest's arguments
    ("max", (*TOGETHER, "--all", "tests/end_to_end/test_instruction_sets.py", *FUNCTIONS)),
    ("max", (*TOGETHER, *KERNELS)),
    ("cortex-a72", (*TOGETHER, *KERNELS, *FUNCTIONS)),
)

# cc is called with GCC's names of CPUs (runtime/hosts/cpu/instruction_sets.py), which are not zig's. The native CPU is
# what qemu plays.
ZIG = """#!/bin/sh
for word do
    shift
    case $word in
        -march=armv8-a) word=-mcpu=generic ;;
        -march=armv8.2-a+*) word=-mcpu=generic+${word#*+} ;;
        -mcpu=native) word=-mcpu=generic@EXTENSIONS@ ;;
        -g0) continue ;;
    esac
    set -- "$@" "$word"
done
exec @COMPILER@ cc -target aarch64-linux-gnu.2.34 -fno-sanitize=undefined -fno-stack-protector "$@"
"""
GCC = """#!/bin/sh
for word do
    shift
    case $word in -mcpu=native) word=-march=@BASE@@EXTENSIONS@ ;; esac
    set -- "$@" "$word"
done
exec @COMPILER@ "$@"
"""


# What the compilers call the features of runtime/hosts/cpu/processor.py that compiled code may be given.
ZIG_NAMES = {"asimddp": "dotprod", "asimdhp": "fullfp16", "bf16": "bf16", "i8mm": "i8mm"}
GCC_NAMES = ZIG_NAMES | {"asimdhp": "fp16"}
FEATURES = "from mlxr.runtime.hosts.cpu.processor import features; print(*features())"


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


def write_programs(root: Path, cpu: str) -> Path:
    """The folder of what tests start, as programs of this machine: the emulated Python, and an objdump for ARM."""
    programs = root / "programs" / cpu
    programs.mkdir(parents=True, exist_ok=True)
    start = emulated(root)
    environment = {
        "PYTHONHOME": str(root / "usr"),
        "PYTHONPATH": os.pathsep.join(map(str, (root / "site", ROOT / "src", ROOT / "tests/support"))),
        "PYTHONPYCACHEPREFIX": str(root / "pycache"),
    }
    for_qemu = [word for name, value in environment.items() for word in ("-E", f"{name}={value}")]
    # It takes this script for its executable, so that workers of pytest-xdist start without the kernel knowing ARM.
    python = [*start, "-0", str(programs / "python3"), *for_qemu, str(root / "usr/bin/python3")]
    for name, command in (("python3", python), ("objdump", [*start, str(root / "usr/bin/objdump")])):
        write_script(programs / name, f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    return programs


def write_compiler(path: Path, features: Sequence[str]) -> None:
    """Writes cc, which compiles for ARM: zig, or the cross compiler of GCC that $MLXR_ARM_CC names.

    Args:
        path: the file. What is compiled is cached by its path and time.
        features: those of the CPU that is played.

    Raises:
        MissingError: there is no such compiler.
    """
    if gcc := os.environ.get("MLXR_ARM_CC"):
        text, compiler, names = GCC, shutil.which(gcc), GCC_NAMES
    else:
        text, compiler, names = ZIG, zig_executable(), ZIG_NAMES
    if compiler is None:
        raise MissingError(f"there is no {gcc}" if gcc else "the ziglang wheel is not installed")
    native = "".join(f"+{names[feature]}" for feature in sorted(names.keys() & features))
    base = "armv8.2-a" if native else "armv8-a"
    text = text.replace("@BASE@", base).replace("@EXTENSIONS@", native)
    write_script(path, text.replace("@COMPILER@", shlex.quote(compiler)))


def write_script(path: Path, text: str) -> None:
    """Writes a program, unless it is there."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
        path.chmod(0o755)


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


def run_tests(root: Path, cpu: str, arguments: Sequence[str]) -> int:
    """Runs pytest on a CPU that qemu plays; its exit code.

    Raises:
        MissingError: this CPU cannot be played, or there is no compiler.
    """
    programs = write_programs(root, cpu)
    features = run(programs / "python3", "-c", FEATURES, QEMU_CPU=cpu).split()
    write_compiler(programs / "cc", features)
    print(f"on_arm: {cpu}, which has {' '.join(sorted(features))}", flush=True)
    # As users get it: without the flags by which short tests let compilers optimise less.
    own = {"QEMU_CPU": cpu, "MLXR_CPU_CFLAGS": "", "PATH": os.pathsep.join([str(programs), os.environ["PATH"]])}
    kept = {name: value for name, value in os.environ.items() if name != "CC"}
    command = (programs / "python3", "-m", "pytest", "-p", "no:cacheprovider", *arguments)
    return subprocess.run(command, cwd=ROOT, env=kept | own, check=False).returncode


def main(arguments: list[str]) -> int:
    """Runs the tests; the first exit code of pytest that is not 0, or 0 where they cannot be run."""
    runs = [(os.environ.get("QEMU_CPU", "max"), arguments)] if arguments else RUNS
    try:
        emulated(Path())  # before anything is fetched
        root = arm_python()
        codes = [run_tests(root, cpu, chosen) for cpu, chosen in runs]
    except MissingError as error:
        print(f"on_arm: nothing is run: {error}")
        return 0
    return next(filter(None, codes), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
