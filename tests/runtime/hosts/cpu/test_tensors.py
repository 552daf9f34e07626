"""Weights in place: mapped, converted, packed and permuted; from files of both formats and from memory."""

import mmap
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from mlxr.compiler.artifact import Columns, CTensor, Recipe, Rows, TensorSource, WeightFormat
from mlxr.compiler.errors import HostError, WeightsError
from mlxr.runtime.hosts.cpu import pack_panels, placing
from mlxr.runtime.hosts.cpu.build import load_library
from mlxr.runtime.hosts.cpu.library import Library
from mlxr.runtime.hosts.cpu.memory import reserve
from mlxr.runtime.hosts.cpu.placing import PlacedTensors
from mlxr.runtime.hosts.cpu.tensors import place_tensors, read_from
from mlxr.runtime.weights import mapped_weights, open_weights
from mlxr.runtime.weights.element_types import encode
from mlxr.runtime.weights.stored_tensor import StoredTensor
from mlxr_tests.memory_weights import read_memory
from mlxr_tests.toy_program import PACKED_ROWS, ROW_BYTES, toy_source

COLUMNS = 32
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(load_library(toy_source(), "toy"))


def source(name: str, *shape: int, heads: int | None = None, add: float = 0, held: str = "f32") -> TensorSource:
    """A part; with heads, GGUF files have the two halves of each head's rows interleaved."""
    half = shape[0] // heads // 2 if heads else 0
    rows = Rows(0, (heads, 2, half), (2 * half, 1, 2)) if heads else None
    found, in_gguf = (Recipe(f"{name}.weight", rows=order, add=add) for order in (None, rows))
    return TensorSource(name, shape, (found,), (in_gguf,), WeightFormat(held))


def in_order(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of such a file in the model's order."""
    return np.concatenate([part for head in np.split(rows, heads) for part in (head[::2], head[1::2])])


def tensor(layout: str, held: str, *parts: TensorSource) -> CTensor:
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    rows = -(-shape[0] // 16) * 16 if layout == "packed" else shape[0]
    row_bytes = WeightFormat(held).row_bytes(shape[1]) if len(shape) == 2 else 4
    return CTensor(
        name=parts[0].name, layout=layout, format=held, shape=shape, size_bytes=rows * row_bytes, parts=parts
    )


def contents(placed: PlacedTensors, index: int, tensor: CTensor) -> np.ndarray:
    """What lies where a tensor begins, as its format's carrier or, packed, as rows of bytes."""
    view = (np.ctypeslib.ctypes.c_uint8 * tensor.size_bytes).from_address(placed.addresses[index])
    raw = np.frombuffer(view, np.uint8).copy()
    if tensor.layout == "packed":
        return raw.reshape(-1, tensor.format.row_bytes(tensor.shape[1]))
    return raw.view({"f32": "<f4", "f16": "<f2", "bf16": "<u2"}[str(tensor.format)]).reshape(tensor.shape)


def random(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def write_gguf(path: Path, arrays: dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType | None]]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, (array, kind) in arrays.items():
        writer.add_tensor(f"{name}.weight", array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


BF16, Q8_0 = gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.Q8_0


def bf16_bytes(array: np.ndarray) -> np.ndarray:
    return encode(array, "bf16").view(np.uint8)


@pytest.mark.parametrize("held", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_float_matrices_are_mapped_where_types_agree(library, tmp_path: Path, held: str, kind: str) -> None:
    numbers = random(np.random.default_rng(1), 24, COLUMNS)
    for stored in ("f32", "f16"):
        array = numbers.astype({"f32": np.float32, "f16": np.float16}[stored])
        path = tmp_path / f"{stored}-{kind}.{kind}"
        if kind == "gguf":
            write_gguf(path, {"a": (array, None)})
        else:
            save_file({"a.weight": array}, path)
        wanted = tensor("rows", held, source("a", 24, COLUMNS))
        placed = place_tensors([wanted], library, read_from(open_weights(path)), 2)
        assert (placed.mapped_bytes, placed.own_bytes) == (
            (array.nbytes, 0) if stored == held else (0, wanted.size_bytes)
        )
        np.testing.assert_array_equal(contents(placed, 0, wanted), encode(array, held))


@pytest.mark.parametrize(
    ("recipe", "place"),
    [
        (Recipe("a.weight", rows=Rows(8, (2, 4), (4, 1))), np.s_[8:16, :]),
        (Recipe("a.weight", columns=Columns(8, COLUMNS)), np.s_[:, 8:16]),
    ],
    ids=["rows are mapped", "columns are copied"],
)
def test_parts_of_a_float_matrix(library, tmp_path: Path, recipe: Recipe, place: tuple[slice, slice]) -> None:
    numbers = random(np.random.default_rng(1), 24, COLUMNS)
    save_file({"a.weight": numbers}, tmp_path / "a.safetensors")
    expected = numbers[place]
    wanted = tensor("rows", "f32", TensorSource("a", expected.shape, (recipe,), ()))
    placed = place_tensors([wanted], library, read_from(open_weights(tmp_path / "a.safetensors")), 2)
    own = 0 if recipe.columns is None else expected.nbytes
    assert (placed.mapped_bytes, placed.own_bytes) == (expected.nbytes - own, own)
    np.testing.assert_array_equal(contents(placed, 0, wanted), expected)


def test_bf16_of_gguf_is_mapped(library, tmp_path: Path) -> None:
    numbers = random(np.random.default_rng(2), 24, COLUMNS)
    path = write_gguf(tmp_path / "a.gguf", {"a": (bf16_bytes(numbers), BF16)})
    wanted = tensor("rows", "bf16", source("a", 24, COLUMNS))
    placed = place_tensors([wanted], library, read_from(open_weights(path)), 2)
    assert placed.own_bytes == 0
    np.testing.assert_array_equal(contents(placed, 0, wanted), encode(numbers, "bf16"))


@pytest.mark.parametrize("held", ["f32", "bf16"])
def test_gguf_rows_of_heads_are_put_in_order(library, tmp_path: Path, held: str) -> None:
    numbers = random(np.random.default_rng(3), 24, COLUMNS)
    stored = {"f32": (numbers, None), "bf16": (bf16_bytes(numbers), BF16)}[held]
    path = write_gguf(tmp_path / "a.gguf", {"a": stored})
    wanted = tensor("rows", held, source("a", 24, COLUMNS, heads=3))
    placed = place_tensors([wanted], library, read_from(open_weights(path)), 2)
    assert placed.mapped_bytes == 0
    np.testing.assert_array_equal(contents(placed, 0, wanted), in_order(encode(numbers, held), 3))
    # The same source in safetensors is in order already.
    save_file({"a.weight": numbers}, tmp_path / "a.safetensors")
    placed = place_tensors([wanted], library, read_from(open_weights(tmp_path / "a.safetensors")), 2)
    np.testing.assert_array_equal(contents(placed, 0, wanted), encode(numbers, held))


@pytest.mark.parametrize("heads", [None, 5])
@pytest.mark.parametrize("piece_bytes", [1, 700, 1200, 1 << 20])
def test_pieces_do_not_show(
    library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, heads: int | None
) -> None:
    for module in (placing, pack_panels):
        monkeypatch.setattr(module, "PIECE_BYTES", piece_bytes)
    rng = np.random.default_rng(4)
    numbers, blocks = random(rng, 24, COLUMNS), rng.integers(0, 256, (PACKED_ROWS, ROW_BYTES), dtype=np.uint8)
    path = write_gguf(tmp_path / "a.gguf", {"a": (numbers, None), "q": (blocks, Q8_0)})
    wanted = (
        tensor("rows", "f16", source("a", 24, COLUMNS, heads=3)),
        tensor("packed", "q8_0", source("q", PACKED_ROWS, 64, heads=heads)),
    )
    told: list[tuple[int, int]] = []
    reader = read_from(open_weights(path))
    placed = place_tensors(wanted, library, reader, 2, lambda *numbers: told.append(numbers))
    np.testing.assert_array_equal(contents(placed, 0, wanted[0]), encode(in_order(numbers, 3), "f16"))
    packed = contents(placed, 1, wanted[1])
    np.testing.assert_array_equal(packed[:PACKED_ROWS], in_order(blocks, heads) if heads else blocks)
    assert packed.shape == (48, ROW_BYTES) and not packed[PACKED_ROWS:].any()
    assert told == sorted(told) and told[-1] == (placed.own_bytes, sum(t.size_bytes for t in wanted))


def test_planes_are_brought_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file as MLX writes it: each task hands the library its rows of every plane."""
    held = WeightFormat("affine4_g64_f16")
    monkeypatch.setattr(pack_panels, "PIECE_BYTES", 1)
    rng = np.random.default_rng(12)
    words = rng.integers(0, 2**32, (40, 16), dtype=np.uint32)
    scales, biases = (rng.standard_normal((40, 2)).astype(np.float16) for _ in range(2))
    save_file({"a.weight": words, "a.scales": scales, "a.biases": biases}, tmp_path / "a.safetensors")
    wanted = tensor("packed", str(held), source("a", 40, 128, held=str(held)))
    seen: dict[int, list[bytes]] = {}

    class Recorder:
        def pack(self, index: int, target: int, planes: Any, first: int, last: int) -> int:
            rows = min(40, 16 * last) - 16 * first
            sizes = (rows * 64, rows * 4, rows * 4)
            seen[first] = [np.ctypeslib.ctypes.string_at(at, size) for at, size in zip(planes, sizes, strict=True)]
            return 0

    place_tensors([wanted], Recorder(), read_from(open_weights(tmp_path / "a.safetensors")), 2)
    assert sorted(seen) == [0, 1, 2]
    for plane, array in enumerate((words, scales, biases)):
        assert b"".join(seen[first][plane] for first in sorted(seen)) == array.tobytes()


def test_what_a_recipe_adds_is_in_the_numbers(library, tmp_path: Path) -> None:
    numbers = random(np.random.default_rng(13), 24, COLUMNS)
    save_file({"a.weight": numbers, "n.weight": numbers[0]}, tmp_path / "a.safetensors")
    wanted = (
        tensor("rows", "f32", source("a", 24, COLUMNS, add=1)),
        tensor("vector", "f32", source("n", COLUMNS, add=-2)),
    )
    placed = place_tensors(wanted, library, read_from(open_weights(tmp_path / "a.safetensors")), 2)
    assert placed.mapped_bytes == 0
    np.testing.assert_array_equal(contents(placed, 0, wanted[0]), numbers + np.float32(1))
    np.testing.assert_array_equal(contents(placed, 1, wanted[1]), numbers[0] - np.float32(2))


def test_vectors_are_joined_in_f32(library, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    arrays = {"q": random(rng, 12), "k": random(rng, 8), "n": random(rng, 5)}
    stored = {
        "q": (arrays["q"], None),
        "k": (arrays["k"].astype(np.float16), None),
        "n": (bf16_bytes(arrays["n"]), BF16),
    }
    path = write_gguf(tmp_path / "a.gguf", stored)
    joined = tensor("vector", "f32", source("q", 12, heads=3), source("k", 8, heads=2))
    alone = tensor("vector", "f32", source("n", 5))
    placed = place_tensors([joined, alone], library, read_from(open_weights(path)), 2)
    expected = np.concatenate([in_order(arrays["q"], 3), in_order(stored["k"][0], 2).astype(np.float32)])
    np.testing.assert_array_equal(contents(placed, 0, joined), expected)
    bits = encode(arrays["n"], "bf16").astype(np.uint32) << 16
    np.testing.assert_array_equal(contents(placed, 1, alone), bits.view(np.float32))
    assert all(address % 64 == 0 for address in placed.addresses)


def test_a_quantised_vector_becomes_f32(library, tmp_path: Path) -> None:
    numbers = random(np.random.default_rng(6), 64)
    blocks = gguf.quants.quantize(numbers, Q8_0)
    path = write_gguf(tmp_path / "a.gguf", {"n": (blocks, Q8_0)})
    wanted = tensor("vector", "f32", source("n", 64))
    placed = place_tensors([wanted], library, read_from(open_weights(path)), 2)
    np.testing.assert_array_equal(contents(placed, 0, wanted), gguf.quants.dequantize(blocks, Q8_0))


@pytest.mark.parametrize("offset", [1, 3])
def test_a_file_whose_tensors_are_not_aligned_is_copied(library, tmp_path: Path, offset: int) -> None:
    numbers = random(np.random.default_rng(7), 24, COLUMNS)
    save_file({"a.weight": numbers}, tmp_path / "a.safetensors")
    content = (tmp_path / "a.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size] + b" " * offset
    odd = tmp_path / "odd.safetensors"
    odd.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])
    wanted = tensor("rows", "f32", source("a", 24, COLUMNS))
    placed = place_tensors([wanted], library, read_from(open_weights(odd)), 2)
    assert placed.mapped_bytes == 0 and placed.addresses[0] % 4 == 0
    np.testing.assert_array_equal(contents(placed, 0, wanted), numbers)


def test_weights_from_memory(library) -> None:
    rng = np.random.default_rng(8)
    arrays: Arrays = {
        "f32": random(rng, 24, COLUMNS),
        "f16": random(rng, 24, COLUMNS).astype(np.float16),
        "bf16": encode(random(rng, 24, COLUMNS), "bf16"),
        "norm": encode(random(rng, 24), "bf16"),
        "wide": random(rng, 24, COLUMNS),
    }
    wanted = [tensor("rows", name, source(name, 24, COLUMNS)) for name in ("f32", "f16", "bf16")]
    wanted += [tensor("vector", "f32", source("norm", 24)), tensor("rows", "bf16", source("wide", 24, COLUMNS))]
    placed = place_tensors(wanted, library, read_memory(arrays), 2)
    for index, name in enumerate(("f32", "f16", "bf16")):
        assert placed.addresses[index] == arrays[name].ctypes.data
    widened = (arrays["norm"].astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(contents(placed, 3, wanted[3]), widened)
    np.testing.assert_array_equal(contents(placed, 4, wanted[4]), encode(arrays["wide"], "bf16"))


def test_blocks_of_another_kind_are_refused(library, tmp_path: Path) -> None:
    numbers = random(np.random.default_rng(9), 16, 64)
    path = write_gguf(tmp_path / "a.gguf", {"a": (gguf.quants.quantize(numbers, Q8_0), Q8_0), "b": (numbers, None)})
    wanted = (
        tensor("packed", "q4_0", source("a", 16, 64)),
        tensor("packed", "q8_0", source("b", 16, 64)),
        tensor("packed", "q8_0", source("a", 16, 64)),
    )
    with pytest.raises(WeightsError) as caught:
        place_tensors(wanted, library, read_from(open_weights(path)), 2)
    message = str(caught.value)
    assert "tensor 'a.weight' (a) is q8_0, the artifact reads q4_0; " in message
    assert "tensor 'b.weight' (b) is f32, the artifact reads q8_0. " in message
    assert "mlxr run MODEL" in message


def test_numbers_that_do_not_fit_are_refused(library, tmp_path: Path) -> None:
    numbers = np.full((24, COLUMNS), 1e6, np.float32)
    save_file({"a.weight": numbers}, tmp_path / "a.safetensors")
    wanted = tensor("rows", "f16", source("a", 24, COLUMNS))
    with pytest.raises(WeightsError, match=r"a\.safetensors: tensor 'a\.weight' \(a\): the number 1e\+06 is beyond"):
        place_tensors([wanted], library, read_from(open_weights(tmp_path / "a.safetensors")), 2)


def test_a_file_cut_short_since_it_was_opened(library, tmp_path: Path) -> None:
    save_file({"a.weight": np.zeros((24, COLUMNS), np.float32)}, tmp_path / "a.safetensors")
    file = open_weights(tmp_path / "a.safetensors")
    wanted = tensor("rows", "f32", source("a", 24, COLUMNS))
    for size in (2000, 0):
        (tmp_path / "a.safetensors").write_bytes(b"x" * size)
        with pytest.raises(WeightsError, match=r"it was cut short since it was opened|cannot be mapped"):
            place_tensors([wanted], library, read_from(file), 2)
    (tmp_path / "a.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"a\.safetensors: cannot be mapped: .*No such file"):
        place_tensors([wanted], library, read_from(file), 2)


def test_a_mapped_file_may_be_replaced(library, tmp_path: Path) -> None:
    numbers = random(np.random.default_rng(10), 24, COLUMNS)
    path = tmp_path / "a.safetensors"
    save_file({"a.weight": numbers}, path)
    wanted = tensor("rows", "f32", source("a", 24, COLUMNS))
    placed = place_tensors([wanted], library, read_from(open_weights(path)), 2)
    save_file({"a.weight": np.zeros((24, COLUMNS), np.float32)}, tmp_path / "new")
    (tmp_path / "new").replace(path)
    np.testing.assert_array_equal(contents(placed, 0, wanted), numbers)


def test_too_little_memory(library, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("mlxr.runtime.hosts.cpu.memory.mmap.mmap", refuse)
    with pytest.raises(HostError, match=r"cannot get 3 MiB for the weights: .*Cannot allocate memory"):
        reserve(3 << 20)


def test_reserved_memory_is_zero_and_begins_at_a_large_page() -> None:
    for size in (0, 1, 5 << 20):
        block = reserve(size)
        assert block.nbytes == size and block.ctypes.data % (2 << 20) == 0 and not block.any()


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="the system has no such advice")
def test_pages_that_were_packed_are_given_back(library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int, int]] = []
    original = mapped_weights.MappedWeights.forget

    def record(self, tensor: StoredTensor, first: int, last: int) -> None:
        given.append((tensor.name, first, last))
        original(self, tensor, first, last)

    monkeypatch.setattr(mapped_weights.MappedWeights, "forget", record)
    rows = 1 << 12
    numbers = random(np.random.default_rng(11), rows, COLUMNS)
    save_file({"a.weight": numbers}, tmp_path / "a.safetensors")
    wanted = tensor("rows", "f16", source("a", rows, COLUMNS))
    file = open_weights(tmp_path / "a.safetensors")
    placed = place_tensors([wanted], library, read_from(file), 2)
    assert given == [("a.weight", 0, 4 * rows * COLUMNS)]
    np.testing.assert_array_equal(contents(placed, 0, wanted), numbers.astype(np.float16))
