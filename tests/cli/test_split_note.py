"""The note that one machine is predicted to be faster than the ranks that run a model."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlxr.cli import main, split_note
from mlxr.compiler.artifact import Chip
from mlxr.compiler.chips.catalog import find_chip
from mlxr_tests.ranks import free_ports, run_ranks
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.storyteller import TINY


def ranks_that_run(on_one_machine: bool) -> Any:
    """What a command has of a small model over two ranks, after it was loaded."""
    artifact = compiled(small_spec(parallel={"tensor": 2}))
    ranks = SimpleNamespace(artifact=artifact, on_one_machine=on_one_machine)
    return SimpleNamespace(ranks=ranks, host=SimpleNamespace(name="metal"))


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `mlx.launch` starts rank 0 of two, by backend ring."""
    hostfile = tmp_path / "hosts.json"
    hostfile.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(2)]))
    monkeypatch.setenv("MLX_HOSTFILE", str(hostfile))
    monkeypatch.setenv("MLX_RANK", "0")


@pytest.mark.parametrize(
    ("on_one_machine", "link", "title"),
    [
        (True, None, "processes of one machine"),
        (False, None, "Ethernet of 10 Gb/s"),
        (False, "tb5", "Thunderbolt 5, RDMA"),
    ],
)
def test_a_slow_link_is_named(
    on_one_machine: bool, link: str | None, title: str, launched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_note, "chip_of", lambda host: find_chip("m4-max"))
    note = split_note.split_note(ranks_that_run(on_one_machine), link)
    assert note is not None
    assert f"small by tensor 2 over {title} is predicted to decode" in note
    assert "one Apple M4 Max alone" in note
    assert ("--link NAME" in note) == (link is None)


def test_nothing_is_said_where_nobody_knows_or_a_split_pays(launched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, m4 = ranks_that_run(True), find_chip("m4-max")
    unknown = Chip.model_validate(m4.model_dump() | {"figures": None})
    for chip in (None, unknown):
        monkeypatch.setattr(split_note, "chip_of", lambda host, chip=chip: chip)
        assert split_note.split_note(model, None) is None
    figures = m4.model_dump()["figures"]
    figures["bandwidth_gb_per_s"]["value"] = 1e-4  # of the weights each rank reads half, which takes longer than a sum
    slow = Chip.model_validate(m4.model_dump() | {"figures": figures})
    monkeypatch.setattr(split_note, "chip_of", lambda host: slow)
    assert split_note.split_note(model, None) is None
    monkeypatch.setattr(split_note, "chip_of", lambda host: m4)
    model.ranks = None
    assert split_note.split_note(model, None) is None


def test_a_server_says_it_beside_its_start(
    launched: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(split_note, "chip_of", lambda host: find_chip("m4-max"))
    split_note.tell_beside(ranks_that_run(True), "1GbE").join()
    assert capsys.readouterr().err.startswith("note: small by tensor 2 over Ethernet of 1 Gb/s is predicted")


@pytest.mark.parametrize(
    ("backend", "links"), [("nccl", ("nvlink", "nvlink")), ("jaccl", ("tb5", "tb5")), ("mpi", ("loopback", "10GbE"))]
)
def test_the_link_that_is_assumed(backend: str, links: tuple[str, str]) -> None:
    assert (split_note.usual_link(backend, True), split_note.usual_link(backend, False)) == links


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run storyteller --link tb6", "there is no link 'tb6'; known links are"),
        ("run storyteller --link tb5", "--link is for a model over several machines"),
        ("serve storyteller --link tb5", "--link is for a model over several machines: give --distributed"),
    ],
)
def test_links_that_are_refused(command: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = command.split()
    assert main(words if words[0] == "serve" else [*words, "--prompt", "A"]) == 1
    assert message in capsys.readouterr().err


WITH_A_CHIP = """
import sys
from mlxr.cli import main, split_note
from mlxr.compiler.chips.catalog import find_chip
split_note.chip_of = lambda host: find_chip("m4-max")
sys.exit(main(sys.argv[1:]))
"""
"""The command, on a machine whose GPU is known."""


@pytest.mark.long
def test_run_says_so_once(tmp_path: Path) -> None:
    run = ["run", str(TINY), "--host", "cpu", "--threads", "1", "--prompt", "Once", "--max-tokens", "2"]
    first, second = run_ranks(2, ["-c", WITH_A_CHIP, *run, "--link", "10GbE"])
    assert first.code == 0, first
    assert first.stderr.count("note: ") == 1 and "over Ethernet of 10 Gb/s is predicted" in first.stderr, first
    assert (second.code, second.stdout, second.stderr) == (0, "", "")
