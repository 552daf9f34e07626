"""GGUF models in several files, as the gguf package writes them."""

import shutil
from pathlib import Path

import gguf
import pytest

import mlxr
from mlxr.compiler.errors import MlxrError, WeightsError
from mlxr.quantise.mixtures import MIXTURES
from mlxr.quantise.requantise import Quantisation, gguf_source, write_quantised
from mlxr.runtime.tokenizer import load_tokenizer
from mlxr.runtime.weights import gguf_metadata, open_weights
from mlxr_tests.storyteller import TINY

FILES = 3


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A model of one file, written once more as three."""
    whole = gguf.GGUFReader(TINY)
    most = -(-len(whole.tensors) // FILES)
    writer = gguf.GGUFWriter(tmp_path_factory.mktemp("parts") / "tiny.gguf", "llama", split_max_tensors=most)
    for field in whole.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind, item = field.types[0], field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), kind, item)
    for tensor in whole.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = sorted(writer.path.parent.glob("*.gguf"))
    assert [path.name for path in found] == [f"tiny-{n:05}-of-{FILES:05}.gguf" for n in range(1, FILES + 1)]
    return found


def copies(parts: list[Path], folder: Path) -> list[Path]:
    return [Path(shutil.copy(part, folder)) for part in parts]


@pytest.mark.parametrize("given", [0, 2, "folder"])
def test_all_files_are_one_model_whichever_is_named(parts: list[Path], given: int | str) -> None:
    path = parts[0].parent if isinstance(given, str) else parts[given]
    found, whole = open_weights(path), open_weights(TINY)
    assert list(found.tensors) == list(whole.tensors)
    assert {info.file for info in found.tensors.values()} == set(parts)
    for name, info in found.tensors.items():
        other = whole.tensors[name]
        assert (info.shape, info.type) == (other.shape, other.type)
        with info.file.open("rb") as mine, other.file.open("rb") as theirs:
            mine.seek(info.offset)
            theirs.seek(other.offset)
            assert mine.read(info.size_bytes) == theirs.read(info.size_bytes), name
    own = {key: value for key, value in found.metadata.items() if not key.startswith("split.")}
    assert own == dict(gguf_metadata(TINY)) and gguf_metadata(parts[1]) == found.metadata


def test_a_model_in_files_writes_what_it_writes_in_one(parts: list[Path]) -> None:
    names, answers = [], []
    assert load_tokenizer(parts[0].parent).encode("Once upon") == load_tokenizer(TINY).encode("Once upon")
    for path in (parts[0].parent, parts[1], TINY):
        with mlxr.load(path, host="reference", changes=mlxr.Changes(context=64)) as model:
            names.append(model.artifact.spec.name)
            answers.append(model.generate("Once upon a time", max_tokens=8).token_ids)
    assert names == ["tiny", "tiny", TINY.stem] and answers[0] == answers[1] == answers[2]


def test_a_model_in_files_is_quantised_as_one(parts: list[Path], tmp_path: Path) -> None:
    how = Quantisation(MIXTURES["q4_0"], requantise=True)
    for source, name in ((TINY, "whole.gguf"), (parts[1], "joined.gguf")):
        write_quantised(gguf_source(source), tmp_path / name, how)
    assert (tmp_path / "joined.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    for part in parts:
        with pytest.raises(MlxrError, match="the model is read from this file"):
            write_quantised(gguf_source(parts[1]), part, how)


def test_what_is_not_a_whole_model_is_refused(parts: list[Path], tmp_path: Path) -> None:
    first, second, third = copies(parts, tmp_path)
    third.unlink()
    with pytest.raises(WeightsError, match=r"00003-of-00003\.gguf is missing, one of its model's 3 files; download it"):
        open_weights(first)
    shutil.copy(second, third)
    with pytest.raises(WeightsError, match=r"split\.no and split\.count are 1 and 3, but by its name 2 and 3"):
        open_weights(first)
    renamed = first.rename(tmp_path / "model.gguf")
    with pytest.raises(WeightsError, match=r"they are found by their names, which must end in -00001-of-00003\.gguf"):
        open_weights(renamed)


def test_files_of_two_models_in_a_folder_are_not_guessed_at(parts: list[Path], tmp_path: Path) -> None:
    copies(parts, tmp_path)
    shutil.copy(TINY, tmp_path / "other.gguf")
    with pytest.raises(WeightsError, match=r"holds 4 \.gguf files"):
        open_weights(tmp_path)


def test_parts_that_see_are_no_models(tmp_path: Path) -> None:
    shutil.copy(TINY, tmp_path / "tiny-Q8_0.gguf")
    for name in ("mmproj-tiny-f16.gguf", "tiny.mmproj-Q8_0.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert open_weights(tmp_path).path == tmp_path / "tiny-Q8_0.gguf"
