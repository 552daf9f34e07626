"""What templates/README.md asks of a weight format, and the macros that it names, against the files."""

import re
from pathlib import Path

import pytest

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.targets.environment import environment
from mlxr.compiler.targets.metal.kernels.matvec_mma import MMA_FORMATS

TEMPLATES = Path(__file__).parents[2] / "templates"
QUANTISED = [format for format in WeightFormat if format.is_quantised]
PLAIN = [format for format in QUANTISED if not format.affine]
AFFINE = [WeightFormat("affine2_g32_f16"), WeightFormat("affine4_g64_bf16"), WeightFormat("affine8_g128_f32")]


def metal(format):
    return environment().get_template(f"metal/formats/{format.template}.jinja").module


def defined(text):
    return set(re.findall(r"^inline \w+ (\w+)\(", text, re.MULTILINE))


@pytest.mark.parametrize("format", [*(f for f in WeightFormat if not f.is_quantised), *PLAIN, *AFFINE])
def test_metal_format(format):
    file = metal(format)
    elements = 16 if format.is_quantised else 16 // format.block_bytes
    assert file.run in (4, 8, 16) and file.runs * file.run == elements
    assert file.runs * file.stride <= 32 or file.stride == 32
    assert file.scaled is format.is_quantised
    text = file.functions(format)
    assert f"struct Raw_{format} " in text
    assert {f"raw_{format}", f"codes_{format}"} <= defined(text)
    assert (f"scale_{format}" in defined(text)) is file.scaled


@pytest.mark.parametrize("format", [format for format in [*PLAIN, *AFFINE] if format in MMA_FORMATS])
def test_metal_format_with_matrix_instructions(format):
    file = metal(format)
    assert len(file.pairs) == 8 and all(max(i, j) < file.run for i, j, _ in file.pairs)
    assert (file.steps, format.block_elements) in {(1, 32), (1, 64), (1, 128), (1, 256), (4, 256)}
    names = {f"wide_{format}", f"pairs_{format}", f"wide_scale_{format}"}
    names |= {f"load_{format}"} if file.steps == 4 else set()
    names |= {f"wide_factor_{format}"} if file.steps == 4 or hasattr(file, "factored") else set()
    text = file.wide(format)
    assert names == defined(text) and f"struct Wide_{format} " in text
    assert not hasattr(file, "near_loads") or f"Wide_{format} wide_{format}(Near_{format} row" in file.near_loads()


@pytest.mark.parametrize("format", PLAIN)
def test_c_format(format):
    text = (TEMPLATES / "cpu/formats" / f"{format.template}.h").read_text(encoding="utf-8")
    for function in ("open", "read", "pack_panel"):
        assert f"MLXR_INLINE void {format}_{function}(" in text
    assert f"MLXR_PANEL_FORMAT({format}, " in text


def test_macros_that_the_readme_names():
    text = (TEMPLATES / "README.md").read_text(encoding="utf-8")
    section = text.partition("## The arena")[2].partition("\n## ")[0]
    names = re.findall(r"^\| `(\w+)\(", section, re.MULTILINE)
    assert len(names) == 6
    arena = environment().get_template("metal/arena.jinja").module
    assert [name for name in names if not hasattr(arena, name)] == []


def test_files_that_the_readme_names():
    text = (TEMPLATES / "README.md").read_text(encoding="utf-8")
    paths = {path for path in re.findall(r"`([\w/.]+\.(?:py|jinja|h|cuh))`", text) if "/" in path}
    roots = (TEMPLATES, TEMPLATES.parent)
    assert len(paths) > 5
    assert [path for path in sorted(paths) if not any((root / path).exists() for root in roots)] == []
