"""What is generated for a model, without the headers, as files: a change of a template shows as a diff.

After an intended change: `pytest tests/kernels/cpu/test_goldens.py --update-golden`, and read the diff.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlxr_tests.cpu_specs import PAGED, SPECS
from mlxr_tests.family_specs import family_spec
from mlxr_tests.specs import compiled, small_spec

ROOT = Path(__file__).parents[3]
GOLDENS = ROOT / "tests/goldens/cpu"
NAMES = ("f16-layer", "contiguous-q8", "q4_k_m", "fast-q4_k_m", "fast-bf16")
FAMILIES = ("gpt-oss-like", "gemma-like", "cohere-like", "experts-shared-gate", "latent", "alibi")

# A kernel ends with the function that programs call; what that function uses stands before it.
_ARGUMENTS = r"(?:mlxr_worker \*w, const mlxr_batch \*b|mlxr_model \*m),"
_KERNEL = re.compile(rf"(?s).*?\nstatic void (?P<label>\w+)_[0-9a-f]{{8}}\({_ARGUMENTS}.*?\n}}\n")

_SOURCE = """
import hashlib
from mlxr_tests.cpu_specs import SPECS
from mlxr_tests.specs import compiled, small_spec
print(hashlib.sha256(compiled(small_spec(**SPECS["q4_k_m"]), target="cpu").source("cpu").encode()).hexdigest())
"""


def generated(name: str) -> dict[str, str]:
    """File name to text: the parts that kernels share, each kernel, the programs. The headers are files already."""
    spec = small_spec(**SPECS[name]) if name in SPECS else family_spec(name, cache=PAGED)
    text = re.sub(r"(?m)^// ---- .*\n", "", compiled(spec, target="cpu").source("cpu"))  # where hosts may cut it
    shared, _, rest = text.partition("// ==== parts that several kernels share\n")[2].partition("// ==== kernels\n")
    kernels, _, rest = rest.partition("// ==== programs\n")
    files = {"shared.c": shared, "programs.c": rest.partition("// ==== what the runtime calls")[0]}
    for kernel in _KERNEL.finditer(kernels):
        label = kernel["label"]
        number = sum(re.fullmatch(rf"{label}(-\d+)?\.c", file) is not None for file in files) + 1
        files[f"{label}.c" if number == 1 else f"{label}-{number}.c"] = kernel[0].strip("\n") + "\n"
    assert _KERNEL.sub("", kernels).strip() == "", "text between the kernels"
    return files


@pytest.mark.parametrize("name", NAMES + FAMILIES)
def test_source(name: str, update_golden: bool) -> None:
    folder = GOLDENS / name
    files = generated(name)
    if update_golden:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
    assert folder.is_dir(), f"{folder} is missing: run with --update-golden"
    kept = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert files == kept, f"{folder} differs: if intended, run with --update-golden"


def test_no_golden_is_left_over() -> None:
    assert {path.name for path in GOLDENS.iterdir()} == set(NAMES + FAMILIES)


@pytest.mark.long
def test_same_bytes_for_any_hash_seed_and_folder(tmp_path: Path) -> None:
    digests = set()
    for seed, folder in (("0", ROOT), ("4242", tmp_path)):
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests/support")])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", _SOURCE], cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1, digests
