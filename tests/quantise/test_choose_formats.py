"""Formats by a budget or a speed: the best of all choices, predictions, measured costs, the command."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxr
from mlxr.bench.divergence import divergence
from mlxr.cli import main
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import RequestError
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.inspect.roofline import roofline
from mlxr.loading.imported_model import import_model
from mlxr.quantise.choose_formats import for_speed, least_divergence
from mlxr.quantise.mixtures import MIXTURES, fitting, may_be_quantised
from mlxr.quantise.requantise import GgufSource, Quantisation, gguf_source, write_quantised
from mlxr.quantise.sensitivity import Costs, Sensitivity, _probe
from mlxr_tests.converted_models import make_folder
from mlxr_tests.storyteller import GOLDEN, VALID

F32 = GOLDEN / "tiny-f32.gguf"
BITS = {"q3_k": 3.4375, "q4_k": 4.5, "q6_k": 6.5625, "q8_0": 8.5}


def random_costs(seed: int) -> Costs:
    random = np.random.default_rng(seed)
    sizes, lost = {}, {}
    for index in range(6):
        scale, size = float(np.exp(random.normal())), int(random.integers(1, 9)) * 100
        sizes[f"t{index}"] = {format: int(size * bits) for format, bits in BITS.items()}
        lost[f"t{index}"] = {format: scale * 4**-bits for format, bits in BITS.items()}
    return Costs(lost, sizes)


@pytest.mark.parametrize("seed", range(4))
def test_no_choice_of_the_same_size_is_better(seed: int) -> None:
    """All of 4^6 choices; at a size that the chosen formats take exactly, none loses less."""
    costs = random_costs(seed)
    names = list(costs.size_bytes)
    every = [
        (
            sum(costs.size_bytes[name][format] for name, format in zip(names, formats, strict=True)),
            sum(costs.divergence[name][format] for name, format in zip(names, formats, strict=True)),
        )
        for formats in itertools.product(BITS, repeat=len(names))
    ]
    smallest, largest = min(every)[0], max(every)[0]
    assert least_divergence(costs, smallest - 1) is None
    before = np.inf
    for budget in np.linspace(smallest, largest, 9):
        choice = least_divergence(costs, budget)
        assert choice is not None and choice.size_bytes <= budget and choice.divergence <= before
        best = min(lost for size, lost in every if size <= choice.size_bytes)
        assert choice.divergence <= 1.35 * best, "each step but the last ones is the best one"
        before = choice.divergence
    whole = least_divergence(costs, largest)
    assert whole is not None and set(whole.formats.values()) == {"q8_0"}


def test_a_format_that_is_worse_and_larger_is_never_chosen() -> None:
    sizes = {"a": {"q4_0": 450, "q4_k": 450, "q3_k": 344, "q5_0": 550, "q6_k": 656}}
    lost = {"a": {"q4_0": 0.5, "q4_k": 0.2, "q3_k": 1.0, "q5_0": 0.19, "q6_k": 0.01}}
    chosen = [least_divergence(Costs(lost, sizes), budget) for budget in (344, 449, 450, 600, 700)]
    assert [choice and choice.formats["a"] for choice in chosen] == ["q3_k", "q3_k", "q4_k", "q4_k", "q6_k"]


def tiny() -> tuple[GgufSource, Costs, dict[str, str]]:
    """A model with a key that only its user knows."""
    source = gguf_source(F32, ("llama.made_up",))
    source = replace(source, metadata={**source.metadata, "llama.made_up": 7})
    names = [name for name, tensor in source.tensors.items() if may_be_quantised(name, tensor.shape)]
    elements = {name: source.tensors[name].num_rows * source.tensors[name].columns for name in names}
    sizes = {name: {format: int(elements[name] * bits / 8) for format, bits in BITS.items()} for name in names}
    lost = {name: {format: 4**-bits for format, bits in BITS.items()} for name in names}
    return source, Costs(lost, sizes), {name: "f32" for name in source.tensors if name not in names}


def test_speeds_are_those_of_what_is_written(tmp_path: Path) -> None:
    """The prediction is that of the file's own plan; the speed that was asked for is met, within 5 %."""
    source, costs, kept = tiny()
    chip = find_chip("m4")
    largest, slowest = for_speed(source, costs, kept, 1.0, chip, 64)
    assert set(largest.formats.values()) == {"q8_0"}  # with the largest formats it is faster than that
    choice, predicted = for_speed(source, costs, kept, 1.05 * slowest, chip, 64)
    assert 1 <= predicted / (1.05 * slowest) < 1.05 and len(set(choice.formats.values())) > 1
    path = tmp_path / "out.gguf"
    write_quantised(source, path, Quantisation(MIXTURES["q4_k_m"], formats=choice.formats))
    spec, _ = import_model(path, ImportOptions(512, force_context=True))
    artifact = compile_spec(spec, targets=("metal",), chip=chip).artifact
    assert 1e6 / roofline(artifact, chip, 64, 1)[0].predicted_us == pytest.approx(predicted, rel=1e-6)
    with pytest.raises(RequestError, match="tokens a second with its smallest formats, as predicted; 1e"):
        for_speed(source, costs, kept, 1e9, chip, 64)


def test_what_loses_nothing_in_one_format_is_measured_in_another() -> None:
    assert _probe({"q4_k": 0.2, "q3_k": 1.0, "q2_k": 4.0}, 256) == "q4_k"
    assert _probe({"q4_k": 0.001, "q3_k": 1.0, "q2_k": 4.0}, 256) == "q3_k"
    assert _probe({"q4_k": 0.0, "q3_k": 0.0, "q2_k": 4.0}, 512) == "q2_k"
    assert _probe({"q5_0": 0.0, "q4_0": 1.0}, 96) == "q4_0"


@pytest.mark.long
def test_estimates_are_close_to_what_is_measured(tmp_path: Path) -> None:
    """A model whose tensors all get another format than that in which they were measured."""
    from mlxr.quantise.folder_source import folder_source

    folder = make_folder("llama", tmp_path / "in")
    source = folder_source(folder)
    how = Quantisation(MIXTURES["q5_0"])
    names = [name for name, tensor in source.tensors.items() if may_be_quantised(name, tensor.shape)]
    text = VALID.read_text()[:6000]
    costs = Sensitivity(source, how, "cpu").costs(names, ["q4_0", "q5_0", "q8_0"], text, 64, 256)
    path = tmp_path / "out.gguf"
    original = mlxr.load(folder, host="cpu")
    ids = original.require_tokenizer().encode(text, add_special=False)[:256]
    for format in ("q4_0", "q5_0"):
        formats = {name: fitting(format, source.tensors[name].columns) for name in names}
        write_quantised(source, path, Quantisation(MIXTURES["q5_0"], formats=formats))
        measured = divergence(mlxr.load(path, host="cpu"), original, ids, 64).mean
        estimated = sum(costs.divergence[name][formats[name]] for name in names)
        assert 0.6 < estimated / measured < 1.6, (format, estimated, measured)


@pytest.mark.long
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = make_folder("llama", tmp_path / "in"), tmp_path / "out.gguf"
    (tmp_path / "text.txt").write_text(VALID.read_text()[:4000])
    arguments = ["quantize", str(folder), "-o", str(out), "--text", str(tmp_path / "text.txt"), "--tokens", "128"]
    assert main([*arguments, "--budget", "0.36MB", "--json"]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert 0.95 * 360_000 < shown["bytes"] <= 360_000 and len(shown["tensors"]) > 2 and shown["divergence"] > 0
    assert main([*arguments, "--budget", f"{shown['bytes']}B", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == shown["bytes"], "a file's own size has room for it"
    assert main([*arguments, "--budget", "1kB"]) == 1
    assert "--budget is 1,000 bytes; with its smallest formats the model takes" in capsys.readouterr().err
    assert main([*arguments, "--speed", "100tok/s", "--chip", "m4"]) == 0
    assert "predicted for m4: " in capsys.readouterr().out


def test_options_that_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["quantize", str(F32), "-o", str(tmp_path / "out.gguf")]
    for extra, message in (
        (["--budget", "1MB"], "--budget and --speed need --text FILE"),
        (["--speed", "30", "--text", str(VALID)], "--speed and --chip go together"),
        (["--budget", "1MB", "--text", str(VALID), "--tokens", "8"], "--tokens is 8; expected at least 64"),
    ):
        assert main([*arguments, *extra]) == 1
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*arguments, "--speed", "fast", "--chip", "m4", "--text", str(VALID)])
    assert "'fast' is not a speed; expected one such as 30tok/s" in capsys.readouterr().err
