"""Opening and reading weights: against the libraries of both formats, and every refusal."""

import json
import os
import shutil
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights import open_weights, weight_file

TESTS = Path(__file__).parents[2]
STORYTELLER = TESTS / "data/storyteller/model.safetensors"
STORYTELLER_Q8_0 = TESTS.parent / "models/storyteller/storyteller-q8_0.gguf"
GOLDEN_GGUF = sorted((TESTS / "data/golden").glob("tiny-*.gguf"))


def test_bf16_safetensors_equals_mlx():
    file = open_weights(STORYTELLER)
    truth = mx.load(str(STORYTELLER))
    assert set(file.tensors) == set(truth)
    for name, expected in truth.items():
        assert file.tensors[name].shape == expected.shape
        assert file.tensors[name].type == "BF16"
        read = file.read(name)
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, np.array(expected.astype(mx.float32)))


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"])
def test_safetensors_native_types_equal_the_library(tmp_path, dtype):
    path = tmp_path / "x.safetensors"
    values = np.random.default_rng(1).integers(0, 2 if dtype == "?" else 100, 2 * 3 * 5).astype(dtype)
    scalar = values[:1].reshape(()).copy()
    save_file({"a": values.reshape(2, 3, 5), "s": scalar, "empty": np.zeros((0, 4), dtype)}, path)
    file = open_weights(path)
    with safe_open(path, "np") as truth:
        for name in ("a", "s", "empty"):
            read = file.read(name)
            assert file.tensors[name].shape == truth.get_tensor(name).shape == read.shape
            np.testing.assert_array_equal(read, truth.get_tensor(name))
        assert file.read("a").dtype == truth.get_tensor("a").dtype


@pytest.mark.parametrize("path", [*GOLDEN_GGUF, STORYTELLER_Q8_0], ids=lambda path: path.stem)
def test_gguf_equals_the_library(path):
    file = open_weights(path)
    truth = gguf.GGUFReader(path).tensors
    assert list(file.tensors) == [tensor.name for tensor in truth]
    for tensor in truth:
        info = file.tensors[tensor.name]
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert (info.type, info.size_bytes, info.offset) == (
            tensor.tensor_type.name,
            tensor.n_bytes,
            tensor.data_offset,
        )
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(file.read(tensor.name).astype(np.float32), expected)


def test_there_are_golden_files():
    kinds = "BF16 F16 IQ4_NL IQ4_XS Q2_K Q3_K_S Q4_0 Q4_1 Q4_K_M Q5_0 Q5_1 Q5_K_M Q6_K Q8_0 f32"
    assert [path.stem for path in GOLDEN_GGUF] == [f"tiny-{kind}" for kind in kinds.split()]


QUANTISED = [kind for kind in gguf.GGMLQuantizationType if gguf.GGML_QUANT_SIZES[kind][0] > 1]


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_a_quantised_type_is_read_if_the_package_can(tmp_path, kind):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(2).integers(0, 256, (5, 3 * size), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("t", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = open_weights(tmp_path)
    assert file.tensors["t"].shape == (5, 3 * block)
    if kind.name in ("Q8_1", "Q8_K", "Q1_0"):
        with pytest.raises(WeightsError, match=f"tensor 't': elements of type {kind.name} cannot be read"):
            file.read("t")
        return
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, kind)
    np.testing.assert_array_equal(file.read("t"), expected)


@pytest.mark.parametrize("slab", [1, 7, 600, 5000])
def test_slabs_of_any_size_give_the_same_numbers(monkeypatch, slab):
    whole = {name: open_weights(GOLDEN_GGUF[1]).read(name) for name in ("blk.0.attn_k.weight", "output_norm.weight")}
    monkeypatch.setattr(weight_file, "SLAB_ELEMENTS", slab)
    for name, expected in whole.items():
        file = open_weights(GOLDEN_GGUF[1])
        np.testing.assert_array_equal(file.read(name), expected)
        info = file.tensors[name]
        starts = [start for start, _ in file.slabs(name, row_multiple=4)]
        assert (len(starts) > 1 or slab >= info.num_elements) and all(start % 4 == 0 for start in starts)


def test_folder_with_one_file_or_an_index(tmp_path):
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "odd name.safetensors")
    assert open_weights(tmp_path).path.name == "odd name.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "odd name.safetensors"}}))
    assert open_weights(str(tmp_path)).path.name == "model.safetensors.index.json"
    save_file({"b": np.ones(3, np.float32)}, tmp_path / "model.safetensors")
    assert list(open_weights(tmp_path).tensors) == ["b"]


def test_folder_with_a_gguf_file(tmp_path):
    shutil.copy(GOLDEN_GGUF[2], tmp_path)
    assert open_weights(tmp_path).format == "gguf"


def test_gguf_is_known_by_content(tmp_path):
    shutil.copy(GOLDEN_GGUF[2], tmp_path / "blob")
    assert open_weights(tmp_path / "blob").format == "gguf"


def _folder_of_two(folder):
    for name in ("a", "b"):
        save_file({name: np.ones(1, np.float32)}, folder / f"{name}.safetensors")
    return folder


def _shards(folder, numbers, count, name="m"):
    for number in numbers:
        path = folder / f"{name}-{number:05d}-of-{count:05d}.safetensors"
        save_file({f"t{number}": np.full(2, number, np.float32)}, path)
    return folder


def test_shards_need_no_index(tmp_path):
    """Their names say how many there are; each of them means the model, as a part of a GGUF model does."""
    _shards(tmp_path, (1, 2, 3), 3)
    for path in (tmp_path, tmp_path / "m-00001-of-00003.safetensors", tmp_path / "m-00003-of-00003.safetensors"):
        file = open_weights(path)
        assert [file.read(name).tolist() for name in ("t1", "t2", "t3")] == [[1, 1], [2, 2], [3, 3]]
    alone = _shards(tmp_path, (1,), 1, "other") / "other-00001-of-00001.safetensors"
    assert set(open_weights(alone).tensors) == {"t1"}


def _twice(folder):
    shutil.copy(_shards(folder, (1,), 2) / "m-00001-of-00002.safetensors", folder / "m-00002-of-00002.safetensors")
    return folder


def _pickle_folder(folder):
    (folder / "pytorch_model.bin").write_bytes(b"x")
    return folder


def _fifo(folder):
    os.mkfifo(folder / "pipe.gguf")
    return folder / "pipe.gguf"


def _named(name):
    def make(folder):
        (folder / name).write_bytes(b"something else")
        return folder / name

    return make


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "none.gguf", "no such file or folder"),
        (lambda folder: folder, "holds no weights; expected model.safetensors"),
        (_folder_of_two, "holds 2 .safetensors files and no model.safetensors.index.json; name the one.*a.safetensors"),
        (lambda folder: _shards(folder, (1, 3), 3), "m-00002-of-00003.safetensors is missing, one of its model's 3"),
        (lambda folder: _shards(folder, (2,), 2), "m-00001-of-00002.safetensors is missing, one of its model's 2"),
        (lambda folder: _shards(_shards(folder, (1,), 2), (1,), 2, "n"), "holds 2 .safetensors files and no model"),
        (_twice, "holds tensor 't1', which m-00001-of-00002.safetensors has, too"),
        (_pickle_folder, "pytorch_model.bin: refused: a .bin file is a pickle.*convert it to safetensors"),
        (_fifo, "not a regular file"),
        (_named("m.pt"), "refused: a .pt file is a pickle"),
        (_named("m.pth"), "refused: a .pth file is a pickle"),
        (_named("m.onnx"), "unknown kind of weight file"),
        (_named("m.gguf"), "corrupt GGUF file: it begins with b'some', expected b'GGUF'"),
        (_named("m.safetensors"), "truncated or not a safetensors file"),
    ],
)
def test_what_is_no_weight_file_is_refused(tmp_path, make, message):
    path = make(tmp_path)
    with pytest.raises(WeightsError, match=message) as caught:
        open_weights(path)
    assert str(caught.value).startswith(str(path)) or path.is_dir()


def test_a_path_that_is_too_long_is_refused(tmp_path):
    for path in ("x" * 300, tmp_path / f"{'x' * 300}.safetensors", "x/" * 5000, "a\0b"):
        with pytest.raises(WeightsError, match=r"cannot be read: |no such file"):
            open_weights(path)


@pytest.mark.parametrize("question", ["is_dir", "exists", "is_file", "iterdir"])
def test_a_path_that_may_not_be_looked_at_is_refused(tmp_path, monkeypatch, question):
    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    path = tmp_path if question == "iterdir" else _named("m.gguf")(tmp_path)
    monkeypatch.setattr(Path, question, refuse)
    with pytest.raises(WeightsError, match="cannot be read: Permission denied"):
        open_weights(path)


def test_reading_an_absent_tensor():
    with pytest.raises(WeightsError, match="holds no tensor 'nope'"):
        open_weights(STORYTELLER).read("nope")


def test_file_cut_short_after_opening(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": np.ones((8, 8), np.float32)}, path)
    file = open_weights(path)
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(WeightsError, match=r"ends within tensor 'a'"):
        file.read("a")
    path.unlink()
    with pytest.raises(WeightsError, match=r"cannot be read: No such file"):
        file.read("a")


def test_names_in_messages_are_safe_and_short():
    assert weight_file.quoted("a\x1b[2Jb\n") == r"'a\x1b[2Jb\n'"
    assert len(weight_file.quoted("x" * 10**6)) < 150
