"""Builds the wheel and the source distribution, installs each where nothing of this checkout is, and uses it.

    python tests/installed.py    # what `make test-install` runs: about a minute

The distributions are built from a clone of the checkout with its changes. The wheel has exactly the tracked files that
belong to it, and the one that is built from the source distribution is the same. packaging/install.sh installs it for a
user with an empty home; away from the checkout, the commands and the server then do what a first user does. Where no
package index is reached, nothing is run, and a line says so.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
PACKAGED = ("compiler", "models", "runtime", "templates", "src/mlxr")
PROMPT, ANSWER = "There was once a", " man who had a"  # as in tests/support/mlxr_tests/storyteller.py
MOST_MIB = 25  # of the wheel; the bundled model's weights take 19
OWN_SETTINGS = ("PYTHON", "MLXR_", "XDG_", "VIRTUAL_ENV", "MAKE")


def main() -> int:
    """Builds, installs and uses; returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="mlxr-installed-") as name:
        work = Path(name)
        reached = ("pip", "download", "--quiet", "--no-deps", "--dest", str(work / "probe"), "setuptools>=77")
        if subprocess.run([sys.executable, "-m", *reached], capture_output=True, check=False).returncode:
            print("installed: nothing is run: pip reaches no package index")
            return 0
        wheel, source = build(work)
        environment = Environment(work)
        environment.install(wheel)
        environment.run("python", "-m", "pip", "check")
        version = wheel.name.split("-")[1]
        use(environment, version)
        environment.run("python", "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", str(source))
        told = environment.run("mlxr", "--version")
        assert told == f"mlxr {version}\n", f"the source distribution installs {told!r}, not {version}"
        environment.run("mlxr-compile", "storyteller", "-o", str(work / "from-source"))
        environment.uninstall()
        print(f"installed: {wheel.name} ({wheel.stat().st_size >> 20} MiB) and {source.name} work")
    return 0


def build(work: Path) -> tuple[Path, Path]:
    """Builds a wheel from a clone, and a source distribution with a wheel from that; compares them.

    Returns:
        The wheel and the source distribution.
    """
    clone = work / "clone"
    run("git", "clone", "--quiet", "--no-checkout", str(ROOT), str(clone))
    run("git", "-C", str(clone), "reset", "--quiet")
    tracked = run("git", "-C", str(ROOT), "ls-files", "-z").split("\0")
    for path in filter(None, tracked):
        if (ROOT / path).exists():
            (clone / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, clone / path, follow_symlinks=False)
    for kinds, folder in (((), work / "dist"), (("--wheel",), work / "direct")):
        run(sys.executable, "-m", "build", *kinds, "--outdir", str(folder), str(clone))
    (wheel,), (source,) = (work / "direct").glob("*.whl"), (work / "dist").glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = [member.name.partition("/")[2] for member in archive]
    assert "packaging/requirements.txt" in names, "the formula installs what the source distribution locks"
    files, again = files_of(wheel), files_of(work / "dist" / wheel.name)
    assert files == again, f"built from the source distribution, these differ: {differing(files, again)}"
    assert wheel.name.endswith("-py3-none-any.whl"), wheel.name
    assert wheel.stat().st_size < MOST_MIB << 20, f"{wheel.name} has {wheel.stat().st_size} bytes"
    of_package = {path: data for path, data in files.items() if ".dist-info/" not in path}
    expected = {
        path.removeprefix("src/") if path.startswith("src/") else f"mlxr/{path}": (clone / path).read_bytes()
        for path in filter(None, tracked)
        if path.startswith(tuple(f"{folder}/" for folder in PACKAGED)) and (clone / path).is_file()
    }
    assert of_package == expected, f"the wheel and the checkout differ in {differing(of_package, expected)}"
    return wheel, source


def files_of(wheel: Path) -> dict[str, bytes]:
    """What is in a wheel."""
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def differing(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """The names of files that two have not alike."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


class Environment:
    """What packaging/install.sh makes, used from an empty folder by somebody with an empty home.

    Args:
        work: a folder for all.
    """

    def __init__(self, work: Path) -> None:
        self._home, self._folder = work / "home", work / "elsewhere"
        self._home.mkdir()
        self._folder.mkdir()
        self._programs = self._home / ".local/lib/mlxr/bin"
        cache = run(sys.executable, "-m", "pip", "cache", "dir").strip()
        self._variables = {name: value for name, value in os.environ.items() if not name.startswith(OWN_SETTINGS)}
        self._variables |= {"HOME": str(self._home), "PIP_CACHE_DIR": cache, "PIP_NO_COMPILE": "1"}

    def install(self, wheel: Path) -> None:
        """Installs a wheel."""
        self._script("--from", str(wheel), "--python", sys.executable)
        links = {link.name: link.readlink() for link in (self._home / ".local/bin").iterdir()}
        assert links == {name: self._programs / name for name in ("mlxr", "mlxr-compile")}, links

    def uninstall(self) -> None:
        """Removes it; nothing of the programs stays."""
        self._script("--uninstall")
        left = [path for path in (self._home / ".local").rglob("*") if not path.is_dir() and "share" not in path.parts]
        assert not left, f"install.sh --uninstall leaves {left[:5]}"

    def _script(self, *words: str) -> None:
        run("sh", str(ROOT / "packaging/install.sh"), "--yes", *words, cwd=self._folder, env=self._variables)

    def run(self, program: str, *words: str) -> str:
        """Runs one of its programs; what that printed."""
        return run(str(self._programs / program), *words, cwd=self._folder, env=self._variables)

    def start(self, program: str, *words: str) -> "subprocess.Popen[str]":
        """Starts one of its programs; what it prints can be read."""
        return subprocess.Popen(
            [self._programs / program, *words],
            cwd=self._folder,
            env=self._variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def use(environment: Environment, version: str) -> None:
    """Does what a first user does with what is installed."""
    told = environment.run("mlxr", "--version")
    assert told == f"mlxr {version}\n", f"mlxr --version says {told!r}, the wheel is {version}"
    where = environment.run("python", "-c", "import mlxr; print(mlxr.__file__)")
    assert "/.local/lib/mlxr/" in where, f"this uses {where}, not what was installed"
    summary = json.loads(environment.run("mlxr-compile", "storyteller", "-o", "compiled", "--json"))
    assert summary, "mlxr-compile --json says nothing"
    environment.run("mlxr", "inspect", "compiled")
    greedy = ("--raw", "--temperature", "0", "--max-tokens", "4")
    answer = environment.run("mlxr", "run", "storyteller", "--prompt", PROMPT, *greedy)
    assert answer.strip() == ANSWER.strip(), f"mlxr run answers {answer!r}"
    server = environment.start("mlxr", "serve", "storyteller", "--port", "0")
    try:
        ask(address_of(server))
    finally:
        server.send_signal(signal.SIGTERM)
        rest, _ = server.communicate(timeout=60)
    assert server.returncode == 0, f"the server ends with {server.returncode}: {rest}"


def address_of(server: "subprocess.Popen[str]") -> str:
    """The address that a server tells when it listens."""
    assert server.stdout
    lines = []
    for line in server.stdout:
        lines.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    raise AssertionError(f"the server never said where it listens: {''.join(lines)}")


def ask(server: str) -> None:
    """Asks a server for an answer, and for the page with all that it has."""
    body = {"model": "storyteller", "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
    request = urllib.request.Request(
        f"{server}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    answer = json.loads(fetch(request))["choices"][0]["text"]
    assert answer == ANSWER, f"the server answers {answer!r}"
    page = fetch(f"{server}/").decode()
    folder = re.search(r'href="(/page/\w+)/icon\.svg"', page)
    assert folder, f"the page names no icon: {page[:1000]}"
    static = ROOT / "src/mlxr/server/page/static"
    for file in static.rglob("*"):
        if file.suffix in {".css", ".js", ".mjs", ".svg", ".woff2"}:
            served = fetch(f"{server}{folder[1]}/{file.relative_to(static).as_posix()}")
            assert served == file.read_bytes(), f"the page's {file.name} is another one"


def fetch(what: str | urllib.request.Request) -> bytes:
    """What a server answers.

    Raises:
        HTTPError: it refuses.
    """
    with urllib.request.urlopen(what, timeout=300) as answer:
        return bytes(answer.read())


def run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Runs a command; what it printed.

    Raises:
        SystemExit: it failed, with what it said.
    """
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"installed: {' '.join(command)} ends with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
