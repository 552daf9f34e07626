"""What is generated for a model, without the headers, as files: a change of a template shows as a diff.

After an intended change: `pytest tests/kernels/cpu/test_goldens.py --update-golden`, and read the diff.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlxr_tests.cpu_specs import SPECS
from mlxr_tests.specs import compiled, small_spec

ROOT = Path(__file__).parents[3]
GOLDENS = ROOT / "tests/goldens/cpu"
NAMES = ("f16-layer", "contiguous-q8", "q4_k_m", "fast-q4_k_m", "fast-bf16")

_SOURCE = """
import hashlib
from mlxr_tests.cpu_specs import SPECS
from mlxr_tests.specs import compiled, small_spec
print(hashlib.sha256(compiled(small_spec(**SPECS["q4_k_m"]), target="cpu").cpu_source.encode()).hexdigest())
"""


def generated(name: str) -> str:
    """From the parts that kernels share to the programs: what the headers do not say."""
    text = compiled(small_spec(**SPECS[name]), target="cpu").cpu_source
    return text[text.index("// ==== parts that several kernels share") : text.index("// ==== what the runtime calls")]


@pytest.mark.parametrize("name", NAMES)
def test_source(name: str, update_golden: bool) -> None:
    path = GOLDENS / f"{name}.c"
    if update_golden:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(generated(name), encoding="utf-8")
    assert path.is_file(), f"{path} is missing: run with --update-golden"
    assert generated(name) == path.read_text(encoding="utf-8"), f"{path} differs: if intended, run with --update-golden"


def test_no_golden_is_left_over() -> None:
    assert set(GOLDENS.iterdir()) == {GOLDENS / f"{name}.c" for name in NAMES}


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
