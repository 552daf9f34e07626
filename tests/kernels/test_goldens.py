"""Kernel sources of the smallest spec of each variant, as files: a change of a template shows as a diff.

After an intended change: `pytest tests/kernels/test_goldens.py --update-golden`, and read the diff.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlxr_tests.specs import without_provenance
from mlxr_tests.variants import VARIANTS, kernels_of, variant

GOLDENS = Path(__file__).parents[1] / "goldens"
ROOT = Path(__file__).parents[2]

_DIGEST = """
import sys
from mlxr_tests.variants import VARIANTS, variant
print({name: variant(name).digest for name in VARIANTS})
"""


def source_of(name, label):
    artifact = variant(name)
    return without_provenance(artifact.kernel_text(artifact.kernel_entry(label).name))


def names():
    """Of all kernels that have a golden; compiled when first asked for, and not where tests are only collected."""
    return [(name, label) for name in VARIANTS for label in kernels_of(name)]


@pytest.mark.parametrize("name", VARIANTS)
def test_sources(name, update_golden):
    for label in kernels_of(name):
        text, path = source_of(name, label), GOLDENS / name / f"{label}.metal"
        if update_golden:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing: run with --update-golden"
        golden = path.read_text(encoding="utf-8")
        assert text == golden, f"{path} differs: if that is intended, run with --update-golden"


def test_no_golden_is_left_over():
    expected = {GOLDENS / name / f"{label}.metal" for name, label in names()}
    assert set(GOLDENS.rglob("*.metal")) == expected


def test_every_template_has_a_golden():
    """The head of a kernel names its template."""
    templates = {p.name for p in (ROOT / "templates" / "metal").glob("*.metal.jinja")} - {"kernel.metal.jinja"}
    used = set()
    for name, label in names():
        artifact = variant(name)
        head = artifact.kernel_text(artifact.kernel_entry(label).name).splitlines()[1]
        used |= {template for template in templates if f"metal/{template} " in head}
    assert used == templates


@pytest.mark.long
@pytest.mark.parametrize(("seed", "folder"), [("0", ROOT), ("1", Path("/")), ("4242", Path("/"))])
def test_same_bytes_for_any_hash_seed_and_folder(seed, folder):
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "support")])
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
    command = [sys.executable, "-c", _DIGEST]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str({name: variant(name).digest for name in VARIANTS})
