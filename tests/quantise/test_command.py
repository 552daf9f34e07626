"""`mlxr quantize`: options, messages, files that appear whole or not at all, and models that run."""

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlxr.cli import main
from mlxr.compiler.errors import MlxrError
from mlxr.quantise import source_tensor
from mlxr.quantise.fuse_adapters import fuse_adapters
from mlxr.quantise.mixtures import MIXTURES, ModelFacts, Wishes, choose_formats
from mlxr.quantise.requantise import Quantisation, gguf_source, write_quantised
from mlxr.runtime.weights.gguf_parts import gguf_metadata, read_gguf_model
from mlxr_tests.storyteller import GOLDEN, Q8_0

F32 = str(GOLDEN / "tiny-f32.gguf")


def types_of(path: Path) -> dict[str, str]:
    return {name: tensor.type.lower() for name, tensor in read_gguf_model(path).tensors.items()}


def test_all_metadata_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.gguf"
    assert main(["quantize", "storyteller", "-o", str(out), "--format", "Q5_1", "--allow-requantize"]) == 0
    line = capsys.readouterr().out
    assert "bits a weight; tensors: 42 q5_1, 13 f32, 1 q6_k" in line
    left = ("general.file_type", "general.quantization_version")
    old, new = ({k: v for k, v in gguf_metadata(path).items() if k not in left} for path in (Q8_0, out))
    assert old == new and gguf_metadata(out)["general.file_type"] == 9


def test_wishes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.gguf"
    options = ["--tensor-type", r"blk\.0\.attn_v=Q8_0", "--tensor-type", "ffn=q3_k", "--json"]
    assert main(["quantize", F32, "-o", str(out), "--format", "q4_k", *options, "--token-embedding-type", "f16"]) == 0
    shown, types = json.loads(capsys.readouterr().out), types_of(out)
    assert shown["bytes"] == out.stat().st_size and shown["tensors"]["q3_k"] == 6
    assert types["blk.0.attn_v.weight"] == "q8_0" and types["blk.1.attn_v.weight"] == "q4_k"
    assert types["token_embd.weight"] == "f16" and types["blk.1.ffn_down.weight"] == "q3_k"
    assert main(["quantize", F32, "-o", str(out), "--format", "q4_0", "--pure", "--output-tensor-type", "q8_0"]) == 0
    types = types_of(out)
    assert (
        types.pop("output.weight") == "q8_0"
        and set(types.values()) == {"f32", "q4_0"}
        and types["token_embd.weight"] == "q4_0"
    )


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--format", "q9"], "--format is 'q9'; expected one of f32, f16"),
        (["--format", "q4_0", "--tensor-type", "attn_v"], "expected NAME=FORMAT, such as attn_v=q8_0"),
        (["--format", "q4_0", "--tensor-type", "(=q8_0"], "'(' is not a regular expression"),
        (["--format", "q4_0", "--tensor-type", "v=iq1_s"], "--tensor-type: 'iq1_s' is not a format of a tensor"),
        (["--format", "q4_0", "--imatrix", F32], "is a GGUF file, but no importance matrix"),
        (["--format", "q4_0", "--imatrix", "none.gguf"], "none.gguf: cannot be read"),
        (["--format", "q4_0", "--imatrix", __file__], "is not an importance matrix, or is cut short"),
        (["--format", "q2_k_s"], "in q2_k_s, q2_k needs an importance matrix"),
        (["--format", "q4_0", "--group-size", "32"], "--group-size is for folders; "),
        (["--format", "q4_0", "--chip", "m4"], "--chip is for --budget and --speed"),
        (["--budget", "1MB", "--text", __file__, "--pure"], "--pure is for --format; --budget and --speed choose"),
    ],
)
def test_messages(extra: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.gguf"
    assert main(["quantize", F32, "-o", str(out), *extra]) == 1
    shown = capsys.readouterr()
    assert message in shown.err and "Traceback" not in shown.err and not out.exists()


def test_quantising_again_needs_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["quantize", str(GOLDEN / "tiny-Q8_0.gguf"), "-o", str(tmp_path / "out.gguf"), "--format", "q4_0"]
    assert main(arguments) == 1
    assert "is q8_0 already" in capsys.readouterr().err
    assert main([*arguments, "--allow-requantize"]) == 0


@pytest.mark.parametrize("name", ["own.gguf", "symbolic.gguf", "hard.gguf"])
def test_the_model_itself_is_not_written_over(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not by another name, either: links are written through, so it would be gone before it is read."""
    model, out = tmp_path / "own.gguf", tmp_path / name
    shutil.copy(F32, model)
    (tmp_path / "symbolic.gguf").symlink_to(model)
    (tmp_path / "hard.gguf").hardlink_to(model)
    assert main(["quantize", str(model), "-o", str(out), "--format", "q4_0"]) == 1
    assert f"cannot write {out}: the model is read from this file" in capsys.readouterr().err
    assert model.read_bytes() == Path(F32).read_bytes()
    with pytest.raises(MlxrError, match="the model is read from this file"):
        write_quantised(gguf_source(model), out, Quantisation(MIXTURES["q4_0"]))
    with pytest.raises(MlxrError, match="the model is read from this file"):
        fuse_adapters(model, [], out)
    assert model.read_bytes() == Path(F32).read_bytes()


def test_wished_formats_fit_the_rows() -> None:
    """Rows of 96 numbers are no whole blocks of 256: a format of smaller blocks is taken, as for all other tensors."""
    tensors = {name: ((64, 96), "f32") for name in ("token_embd.weight", "output.weight", "blk.0.attn_q.weight")}
    for wishes in (Wishes(embedding="q4_k", output="q6_k"), Wishes(tensors=(("embd", "q4_k"), ("output", "q6_k")))):
        formats = choose_formats(tensors, MIXTURES["q2_k"], ModelFacts("llama", 1), wishes)
        assert formats == {"token_embd.weight": "q5_0", "output.weight": "q8_0", "blk.0.attn_q.weight": "q4_0"}


def test_a_disk_without_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before it is written; what was there stays."""
    out = tmp_path / "out.gguf"
    out.write_text("mine")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert main(["quantize", F32, "-o", str(out), "--format", "q4_0"]) == 1
    assert "it takes 911,520 bytes, and its disk has 1,000 left" in capsys.readouterr().err
    assert out.read_text() == "mine" and list(tmp_path.iterdir()) == [out]


def test_a_disk_that_fills_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some tensors are written: nothing is left half written."""
    out = tmp_path / "out.gguf"
    out.write_text("mine")
    quantise, calls = source_tensor.quantise_rows, []

    def failing(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return quantise(*arguments)

    monkeypatch.setattr(source_tensor, "quantise_rows", failing)
    assert main(["quantize", F32, "-o", str(out), "--format", "q4_0"]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert out.read_text() == "mine" and list(tmp_path.iterdir()) == [out]


def test_an_input_that_is_cut_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = tmp_path / "in.gguf", tmp_path / "out.gguf"
    shutil.copy(F32, source)
    quantise = source_tensor.quantise_rows

    def cutting(*arguments: Any) -> Any:
        source.write_bytes(source.read_bytes()[:100_000])
        return quantise(*arguments)

    monkeypatch.setattr(source_tensor, "quantise_rows", cutting)
    assert main(["quantize", str(source), "-o", str(out), "--format", "q4_0"]) == 1
    assert not out.exists()
