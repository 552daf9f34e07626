"""Files whose metadata name sizes that their tensors do not have: refused before anything is compiled."""

import struct
from pathlib import Path

import pytest

import mlxr
from mlxr.cli import main
from mlxr.compiler import driver
from mlxr.compiler.errors import WeightsError
from mlxr.loading import artifact_cache
from mlxr.loading.compare_spec import check_tensors_first
from mlxr.loading.imported_model import import_model
from mlxr_tests.family_gguf import CASES, write_gguf
from mlxr_tests.family_models import CONFIGS, build_model, config_of, save_folder
from mlxr_tests.family_oracle import EXACT
from mlxr_tests.few import few
from mlxr_tests.storyteller import TINY


def lying(key: str, value: int, path: Path) -> Path:
    """The tiny model with another number in its metadata."""
    data, name = TINY.read_bytes(), f"llama.{key}".encode()
    at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    assert data[at : at + 4] == struct.pack("<I", 4), "it is a u32"
    path.write_bytes(data[: at + 4] + struct.pack("<I", value) + data[at + 8 :])
    return path


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block_count", 1000, r"has 1000 layers by what its files say, and there are only \d+ tensors"),
        ("block_count", 3, r"lacks 9 of the model's \d+ tensors: 'blk.2.attn_norm.weight'"),
        ("feed_forward_length", 1 << 20, r"'blk.0.ffn_gate.weight' .* got \[512, 256\], expected \[1048576, 256\]"),
    ],
)
def test_nothing_is_compiled(
    key: str,
    value: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def compiled(*_: object, **__: object) -> None:
        raise AssertionError("it is compiled")

    monkeypatch.setattr(driver, "compile_spec", compiled)
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MLXR_DATA_DIR", str(tmp_path / "data"))
    path = lying(key, value, tmp_path / "lying.gguf")
    for do in (mlxr.load, mlxr.compile):
        with pytest.raises(WeightsError, match=message):
            do(path)
    assert main(["add", str(path), "--host", "reference"]) == 1
    assert "lying.gguf" in capsys.readouterr().err
    assert not (tmp_path / "cache" / artifact_cache.FOLDER).exists()


@pytest.mark.parametrize("case", few(list(CASES), ["qwen3_moe"]))
def test_gguf_files_that_do_not_lie_pass(case: str, tmp_path: Path) -> None:
    spec, weights = import_model(write_gguf(case, tmp_path), EXACT)
    check_tensors_first(spec, weights)


@pytest.mark.parametrize("case", few(list(CONFIGS), ["qwen2"]))
def test_folders_that_do_not_lie_pass(case: str, tmp_path: Path) -> None:
    config = config_of(case)
    spec, weights = import_model(save_folder(build_model(config), config, tmp_path), EXACT)
    check_tensors_first(spec, weights)
