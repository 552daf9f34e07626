"""What models would take: from headers alone, by the plan, on this machine and on others."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxr.cli import main
from mlxr.compiler.chips.catalog import known_chips, memory_of_chip
from mlxr.compiler.errors import HostError, MlxrError, RequestError
from mlxr.fit.candidate import candidates
from mlxr.fit.fit import Fit, Speed, fit
from mlxr.fit.fit_report import fit_text
from mlxr.fit.machine import Machine, machine_with, this_machine
from mlxr.fit.rehearse import Rehearsal
from mlxr.fit.rows import FitRow, best_of, fit_rows
from mlxr.inspect.text_table import Ink
from mlxr.loading.options import LoadOptions
from mlxr.loading.planned_memory import planned_memory
from mlxr.runtime.hosts.registry import hosts
from mlxr.runtime.memory.free_memory import FreeMemory
from mlxr.runtime.memory.read_rates import ReadRates
from mlxr_tests.published_configs import config_of, spec_of
from mlxr_tests.stand_in_hub import StandInHub, the_hub
from mlxr_tests.storyteller import BF16, ROOT, TINY

CPU = LoadOptions(host="cpu")
FIRST = 24 << 10
"""Bytes that are asked for at first, in place of 4 MiB: the tiny model is smaller than that."""


@pytest.fixture
def told_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speeds of steps and of the disk that nobody measured."""
    rates = ReadRates(1e6, 1e9)
    monkeypatch.setattr("mlxr.runtime.engine.choose_resident.read_rates", lambda folder, threads: rates)
    monkeypatch.setattr("mlxr.fit.fit.rehearse", lambda *arguments: Rehearsal(50.0, 400.0, 100 << 20))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told_speed: None) -> Iterator[StandInHub]:
    """A hub with the tiny model twice, as Q8_0 and under the name of a Q4_K_M, and the storyteller as a folder."""
    monkeypatch.setattr("mlxr.hub.file_start._FIRST", FIRST)
    tiny, folder = TINY.read_bytes(), BF16.parent
    story = {"config.json": (folder / "config.json").read_bytes(), "model.safetensors": BF16.read_bytes()}
    repos = {"org/m": {"m-Q8_0.gguf": tiny, "m-Q4_K_M.gguf": tiny, "README.md": b"x"}, "org/story": story}
    with the_hub(StandInHub(repos), tmp_path, monkeypatch) as hub:
        yield hub


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What `mlxr fit` says for one machine, in JSON."""
    assert main(["fit", *arguments, "--json"]) == 0
    (machine,) = json.loads(capsys.readouterr().out)["machines"]
    assert isinstance(machine, dict)
    return machine


def test_a_repository_is_planned_from_the_beginnings_of_its_files(
    hub: StandInHub, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {row["model"]: row for row in told(capsys, "org/m", "--host", "cpu")["models"]}
    assert {name: row["take"] for name, row in rows.items()} == {
        "org/m:m-Q8_0.gguf": False,
        "org/m:m-Q4_K_M.gguf": True,
    }
    asked = hub.fetched()
    assert asked and all(" bytes=0-" in name for name in asked), "beginnings, each by a range"
    longest = max(int(name.rpartition("-")[2]) for name in asked)
    assert longest + 1 < TINY.stat().st_size // 2, "no weights"
    assert not list(Path(hub.address).glob("*")) and rows["org/m:m-Q8_0.gguf"]["file_bytes"] == TINY.stat().st_size
    # The whole file takes what its header says: its context is shorter than a good one.
    planned = planned_memory(TINY, CPU)
    result = rows["org/m:m-Q8_0.gguf"]["fit"]
    assert result["planned_bytes"] == planned.least
    assert result["memory_bytes"] == planned.least + (100 << 20)
    assert (result["longest_context"], result["context"], result["speed"]["decode_tokens_per_second"]) == (512, 512, 50)


def test_a_folder_of_safetensors(hub: StandInHub, capsys: pytest.CaptureFixture[str]) -> None:
    row = told(capsys, "org/story", "--host", "cpu")["models"][0]
    assert row["fit"]["planned_bytes"] == planned_memory(BF16.parent, CPU).least and row["error"] is None
    (part,) = {name for name in hub.fetched() if name.startswith("model.safetensors")}
    assert part.startswith("model.safetensors bytes=0-") and int(part.rpartition("-")[2]) + 1 < row["file_bytes"] // 2


def test_several_at_once_and_models_that_are_here(hub: StandInHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["fit", "org/m:Q8", str(TINY), "storyteller", "org/nothing/x", "org/gone", "--host", "cpu", "--json"]) == 0
    )
    rows = json.loads(capsys.readouterr().out)["machines"][0]["models"]
    names = [row["model"] for row in rows]
    assert names == ["org/m:m-Q8_0.gguf", str(TINY), "storyteller", "org/nothing/x", "org/gone"]
    assert [row["fits"] for row in rows] == [True, True, True, False, False]
    assert "has no model org/gone" in rows[4]["error"]
    assert rows[0]["fit"]["planned_bytes"] == rows[1]["fit"]["planned_bytes"], "the same file, here and there"
    assert "no such file" in rows[3]["error"]


def test_files_are_counted_once_and_none_is_left_out(hub: StandInHub, tmp_path: Path) -> None:
    """Of weights that a repository has twice, those of the index; of a file whose name is a part's, the file."""
    shards = {f"model-0000{number}-of-00002.safetensors": bytes(9) for number in (1, 2)}
    twice = {"config.json": b"{}", "model.safetensors.index.json": b"{}", "consolidated.safetensors": bytes(50)}
    hub.repos["org/twice"] = twice | shards
    (of_hub,) = candidates("org/twice", tmp_path, lambda *_: None)
    for name, content in hub.repos["org/twice"].items():
        (tmp_path / name).write_bytes(content)
    (here,) = candidates(str(tmp_path), tmp_path, lambda *_: None)
    assert of_hub.size_bytes == here.size_bytes == 18
    (tmp_path / "my-imatrix-Q8_0.gguf").write_bytes(bytes(7))
    (alone,) = candidates(str(tmp_path / "my-imatrix-Q8_0.gguf"), tmp_path, lambda *_: None)
    assert alone.size_bytes == 7


def test_a_machine_that_cannot_run_it_has_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(model: object, machine: Machine, *_: object) -> Fit:
        if machine.is_here:
            return Fit(1, 0, 1, 1, 1, 1)
        raise MlxrError("not there")

    monkeypatch.setattr("mlxr.fit.rows.fit", plan)
    here, there = machine_of(1), machine_with("m1")
    rows = list(fit_rows([str(TINY), "storyteller"], [here, there], CPU, None, lambda _: None, lambda *_: None))
    assert [(row.machine, row.error) for row in rows] == 2 * [(here, None), (there, "not there")]


def test_headers_of_many_files_are_not_kept(hub: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def plan(model: Path, *_: object) -> Fit:
        seen.append(len(list(model.parent.parent.iterdir())))
        return Fit(1, 0, 1, 1, 1, 1)

    monkeypatch.setattr("mlxr.fit.rows.fit", plan)
    assert len(list(fit_rows(["org/m"], [machine_of(1)], CPU, None, lambda _: None, lambda *_: None))) == 2
    assert seen == [1, 1]


def test_what_cannot_be_told_is_said(hub: StandInHub, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> str:
        assert main(["fit", *arguments, "--host", "cpu"]) == 1
        return capsys.readouterr().err

    assert "has no model org/gone" in said("org/gone")
    hub.repos["org/notes"] = {"README.md": b"x"}
    assert "no safetensors and no GGUF files" in said("org/notes")
    hub.repos["org/pickle"] = {"pytorch_model.bin": b"x"}
    assert "pickles" in said("org/pickle")
    assert "no GGUF file of org/m has 'Q3'" in said("org/m:Q3")
    hub.gated.add("org/m")
    assert "org/m is gated: accept its terms" in said("org/m:Q8")
    hub.gated.clear()
    hub.repos["org/no"] = {"no-Q8_0.gguf": b"this is no model" * 5000}
    assert "no header is at their beginning" in said("org/no")
    large = TINY.read_bytes()[:FIRST] + bytes(8 << 20)
    hub.repos["org/damaged"] = {"a-Q8_0.gguf": large[:100] + b"\xff" * 8 + large[108:]}
    assert "org/damaged" in said("org/damaged")
    hub.status["org/m"] = 503
    assert "answers with an error (503)" in said("org/m")


def test_a_hub_that_sends_no_parts(hub: StandInHub, capsys: pytest.CaptureFixture[str]) -> None:
    """What it sends is read up to the end of the header; where that is not at the beginning, it is said."""
    hub.ranges = False
    row = told(capsys, "org/m:Q8", "--host", "cpu")["models"][0]
    assert row["fit"]["planned_bytes"] == planned_memory(TINY, CPU).least
    folder = hub.repos["org/story"]
    header = 8 + int.from_bytes(folder["model.safetensors"][:8], "little")
    assert header < FIRST, "one request has it"
    with pytest.MonkeyPatch.context() as patch:  # the second request asks for the beginning again
        patch.setattr("mlxr.hub.file_start._FIRST_OF_TENSORS", 100)
        hub.asked.clear()
        told(capsys, "org/story", "--host", "cpu")
    ranges = [name.rpartition(" ")[2] for name in hub.fetched() if name.startswith("model.safetensors")]
    assert list(dict.fromkeys(ranges)) == ["bytes=0-99", f"bytes=0-{header - 1}"], "each is redirected"
    padded = (FIRST).to_bytes(8, "little") + folder["model.safetensors"][8:header].ljust(FIRST) + bytes(FIRST)
    hub.repos["org/long"] = folder | {"model.safetensors": padded}
    assert main(["fit", "org/long", "--host", "cpu"]) == 1
    assert "sends no parts" in capsys.readouterr().err


def test_a_machine_with_too_little_memory(told_speed: None) -> None:
    whole = fit(TINY, this_machine("cpu"), CPU)
    assert whole.refusal is None and whole.speed is not None and whole.sequences > 1
    least = whole.weights_bytes + whole.activation_bytes
    machine = machine_of(least + 3 * whole.arena_bytes // 2)
    small = fit(TINY, machine, CPU)
    assert (small.sequences, small.longest_context) == (1, 512)
    none = fit(TINY, machine_of(least), CPU)
    assert none.longest_context == 0 and none.speed is None
    assert none.refusal is not None and "the largest that fits" in none.refusal


def test_what_runs_from_the_disk_is_told(told_speed: None) -> None:
    """On this machine, whose disk can be measured."""
    whole = fit(TINY, this_machine("cpu"), CPU)
    small = replace(machine_of(whole.weights_bytes // 2 + whole.activation_bytes + whole.arena_bytes), is_here=True)
    refusal = fit(TINY, small, CPU).refusal
    assert refusal is not None and "It runs mapped from a file all the same (--mmap): tiny-Q8_0, " in refusal
    assert "tok/s predicted" in refusal
    elsewhere = fit(TINY, replace(small, is_here=False), CPU).refusal
    assert elsewhere is not None and "mapped" not in elsewhere


def machine_of(size_bytes: int) -> Machine:
    """A machine that runs host cpu and has so much memory."""
    return Machine("small", hosts()["cpu"], None, FreeMemory(size_bytes, size_bytes, "a small machine"), is_here=True)


def test_other_machines_are_those_of_the_chips() -> None:
    gib = 1 << 30
    assert machine_with("m1").memory.free_bytes == 16 * gib * 2 // 3
    assert machine_with("m4-max", 64 * gib).memory.free_bytes == 48 * gib
    card = machine_with("rtx-4090")
    assert (card.host.name, card.memory.free_bytes, card.is_here) == ("cuda", 24 * gib, False)
    with pytest.raises(RequestError, match="say how much memory"):
        machine_with("m5-max")
    with pytest.raises(RequestError, match="not known how fast"):
        machine_with("generic")
    for name in known_chips():
        sold = memory_of_chip(name)
        assert list(sold) == sorted(set(sold)), name


@pytest.mark.parametrize("chip", ["m1", "rtx-4090"])
def test_a_gpu_is_predicted_from_its_launches(chip: str, capsys: pytest.CaptureFixture[str]) -> None:
    machine = told(capsys, str(TINY), "--chip", chip)
    result = machine["models"][0]["fit"]
    assert (machine["chip"], machine["is_here"]) == (chip, False)
    speed = result["speed"]
    assert speed["program_bytes"] is None and speed["source"].startswith("roofline of")
    shown = main(["inspect", str(TINY), "--chip", chip, "--json"])
    steps = json.loads(capsys.readouterr().out)["roofline"]["steps"]
    assert shown == 0 and steps[0]["predicted_tokens_per_second"] == pytest.approx(speed["decode_tokens_per_second"])


def test_latent_attention_in_partitions_is_predicted_too() -> None:
    spec = spec_of(config_of("DeepSeek-V2-Lite") | {"num_hidden_layers": 2})
    result = fit(spec, machine_with("rtx-4090"), LoadOptions())
    assert result.speed is not None and result.no_speed is None


def test_which_to_take() -> None:
    machine = machine_of(1 << 30)

    def row(name: str, place: int, longest: int, error: str | None = None) -> FitRow:
        made = Fit(8, 0, 8, 8, 8192, 40960, longest, 1, None if longest else "too large")
        return FitRow("repo", name, 8, place, machine, None if error else made, error)

    usual, small, refused = row("Q4_K_M", 0, 40960), row("Q2_K", 40, 40960), row("Q5", 12, 0, "not supported")
    assert best_of([small, refused, usual]) is usual
    assert best_of([row("Q4_K_M", 0, 4096), small]) is small, "its context is a good one"
    assert best_of([row("Q4_K_M", 0, 4096), row("Q2_K", 40, 2048)]).name == "Q4_K_M"  # type: ignore[union-attr]
    assert best_of([row("Q4_K_M", 0, 0), refused]) is None


@pytest.mark.parametrize("width", [40, 120])
def test_the_text_fits_and_says_all(width: int) -> None:
    speed = Speed(48.25, 512.0, 512, "its program, timed here over empty weights", 90 << 20)
    good = Fit(4 << 30, 0, 1 << 20, 1 << 30, 8192, 40960, 40960, 12, None, speed)
    none = Fit(40 << 30, 0, 1 << 20, 1 << 30, 8192, 40960, refusal="it needs 41 GiB")
    machine = machine_of(24 << 30)
    rows = [
        FitRow("org/m", "org/m:m-Q8_0.gguf", 40 << 30, 20, machine, none),
        FitRow("org/m", "org/m:m-Q4_K_M.gguf", 4 << 30, 0, machine, good),
        FitRow("org/m", "org/m:m-IQ2.gguf", 2 << 30, 30, machine, None, "an unknown type"),
        FitRow("tale", "tale", None, -1, machine, good),
    ]
    text = fit_text(rows, width, Ink(on=False))
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for part in ("* take org/m:m-Q4_K_M.gguf", "it needs 41 GiB", "an unknown type", "48.2", "40,960", "5.1 GiB"):
        assert part in words, part
    assert "none of them fits" in " ".join(fit_text(rows[:1] + rows[2:3], width, Ink(on=False)).split())


def test_speed_that_cannot_be_measured_is_no_reason_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> Rehearsal:
        raise HostError("there is no C compiler")

    monkeypatch.setattr("mlxr.fit.fit.rehearse", fails)
    result = fit(TINY, this_machine("cpu"), CPU)
    assert (result.speed, result.no_speed, result.sequences > 0) == (None, "there is no C compiler", True)


def test_options_that_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(TINY), "--chip", "m1", "--threads", "2"]) == 1
    assert "add --here" in capsys.readouterr().err
    with pytest.raises(MlxrError):
        fit(ROOT / "nothing", this_machine("cpu"), CPU)
