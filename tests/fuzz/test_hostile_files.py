"""A model's files are a stranger's: whatever they hold, there is a model or an MlxrError, within 2 s and 1 GiB.

Each case is imported, and loaded into the artifact of the file as it was before it was tampered with.
"""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import MlxrError
from mlxr.loading.imported_model import import_model
from mlxr.runtime.weights import load_weights
from mlxr.runtime.weights.check_metadata import check_metadata
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests.family_gguf import write_gguf
from mlxr_tests.family_models import build_model, config_of, save_folder
from mlxr_tests.family_oracle import EXACT
from mlxr_tests.hostile_files import CASES, bounded, changed_configs, damaged, lying_gguf, lying_safetensors

Load = Callable[[Path], None]


def loader(path: Path) -> Load:
    """Imports what is at a path, and loads it into the artifact of what is there now."""
    spec, _ = import_model(path, EXACT)
    artifact = compile_spec(spec, targets=("cpu",)).artifact
    plan = artifact.plan

    def load(changed: Path) -> None:
        with bounded():
            import_model(changed, EXACT)
        with bounded():
            file = open_weights(changed)
            check_metadata(file, artifact.spec)
            load_weights(plan.weights, plan.ignored_tensors, file)

    return load


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module", params=["qwen3_moe", "phi3"])
def gguf_file(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, bytes, int, Load]:
    path = write_gguf(request.param, tmp_path_factory.mktemp("gguf"))
    first = min(tensor.data_offset for tensor in gguf.GGUFReader(path).tensors)
    return path, path.read_bytes(), int(first), loader(path)


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], bytes, Load]:
    from mlx_lm.utils import quantize_model

    config = config_of("qwen2")
    model, config = quantize_model(build_model(config), config, group_size=32, bits=4)
    path = save_folder(model, config, tmp_path_factory.mktemp("hf"))
    return path, config, (path / "model.safetensors").read_bytes(), loader(path)


def test_files_cut_at_every_percent(gguf_file: tuple[Path, bytes, int, Load], folder: Path) -> None:
    _, data, header_bytes, load = gguf_file
    path = folder / "cut.gguf"
    for size in {len(data) * percent // 100 for percent in range(100)} | {
        header_bytes * percent // 100 for percent in range(100)
    }:
        path.write_bytes(data[:size])
        load(path)
        with pytest.raises(MlxrError):
            import_model(path, EXACT)


def test_folders_cut_at_every_percent(hugging_face: tuple[Path, dict[str, Any], bytes, Load], folder: Path) -> None:
    _, config, data, load = hugging_face
    (folder / "config.json").write_text(json.dumps(config))
    for percent in range(100):
        (folder / "model.safetensors").write_bytes(data[: len(data) * percent // 100])
        load(folder)
        with pytest.raises(MlxrError):
            import_model(folder, EXACT)


def test_damaged_gguf_files(gguf_file: tuple[Path, bytes, int, Load], folder: Path) -> None:
    _, data, header_bytes, load = gguf_file
    path = folder / "damaged.gguf"

    @settings(max_examples=CASES // 5)
    @given(changed=damaged(data, header_bytes))
    def check(changed: bytes) -> None:
        path.write_bytes(changed)
        load(path)

    check()


def typed(value: Any) -> bytes:
    """A metadata value as GGUF has it."""
    if isinstance(value, str):
        return struct.pack("<IQ", 8, len(value)) + value.encode()
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)


def test_gguf_files_that_lie(gguf_file: tuple[Path, bytes, int, Load], folder: Path) -> None:
    original, _, header_bytes, load = gguf_file
    file = open_weights(original)
    metadata = {key: typed(value) for key, value in file.metadata.items()}
    infos = [(info.name, tuple(reversed(info.shape)), 0, info.offset - header_bytes) for info in file.tensors.values()]
    path = folder / "lying.gguf"

    @settings(max_examples=CASES // 8)
    @given(changed=lying_gguf(metadata, infos))
    def check(changed: bytes) -> None:
        path.write_bytes(changed)
        load(path)

    check()


def test_damaged_safetensors(hugging_face: tuple[Path, dict[str, Any], bytes, Load], folder: Path) -> None:
    _, config, data, load = hugging_face
    (folder / "config.json").write_text(json.dumps(config))
    size = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:size])
    header.pop("__metadata__", None)

    @settings(max_examples=CASES // 8)
    @given(changed=damaged(data, size) | lying_safetensors(header, data[size:]))
    def check(changed: bytes) -> None:
        (folder / "model.safetensors").write_bytes(changed)
        load(folder)

    check()


def test_configs_that_lie(hugging_face: tuple[Path, dict[str, Any], bytes, Load], folder: Path) -> None:
    _, config, data, load = hugging_face
    (folder / "model.safetensors").write_bytes(data)

    @settings(max_examples=CASES // 8)
    @given(changed=changed_configs(config), text=st.none() | damaged(json.dumps(config).encode(), 4096))
    def check(changed: dict[str, Any], text: bytes | None) -> None:
        (folder / "config.json").write_bytes(text if text is not None else json.dumps(changed).encode())
        load(folder)

    check()


def test_shards_that_lead_elsewhere(hugging_face: tuple[Path, dict[str, Any], bytes, Load], folder: Path) -> None:
    _, config, _, load = hugging_face
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").unlink(missing_ok=True)
    for shard in (
        "../x.safetensors",
        "/etc/passwd",
        "a/../b.safetensors",
        "x\0.safetensors",
        "y" * 5000,
        3,
        None,
        ["a"],
    ):
        text = json.dumps({"weight_map": {"model.embed_tokens.weight": shard}})
        (folder / "model.safetensors.index.json").write_text(text)
        load(folder)
        with pytest.raises(MlxrError):
            import_model(folder, EXACT)
    (folder / "model.safetensors.index.json").unlink()
