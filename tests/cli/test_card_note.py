"""An NVIDIA card that does not compute is told of, once; made up from files as its driver has them."""

from pathlib import Path

import pytest

from mlxr.cli import main
from mlxr.cli.card_note import has_card
from mlxr_tests.storyteller import TINY


def a_program(folder: Path, text: str) -> str:
    """A folder for the path, with an nvidia-smi."""
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "nvidia-smi").chmod(0o755)
    return str(folder)


def test_a_card_is_found_by_its_drivers_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", "")
    assert not has_card(tmp_path)
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert not has_card(tmp_path), "a container without the device"
    (tmp_path / "dev/nvidia0").touch()
    assert has_card(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert not has_card(tmp_path)


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("echo 'GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)'", True),
        ("echo 'No devices were found'", False),
        ('echo "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."; exit 9', False),
    ],
)
def test_a_card_is_found_by_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, found: bool
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", a_program(tmp_path / "bin", program))
    assert has_card(tmp_path) is found


def test_commands_say_once_what_to_install(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxr.cli.card_note.has_card", lambda: True)
    monkeypatch.setattr("mlxr.runtime.hosts.cuda.device.mx.cuda.is_available", lambda: False)
    monkeypatch.setattr("mlxr.runtime.hosts.select._can_run", lambda entry: False)
    note = "note: the CPU computes, though this machine has an NVIDIA card: "
    commands = (
        ["run", str(TINY), "--prompt", "A", "--max-tokens", "1", "--json"],
        ["bench", str(TINY), "--prompt-tokens", "2", "--decode-tokens", "2"],
        ["serve", "nothing-of-that-name"],
    )
    for command in commands:
        for host, count in ((["--host", "auto"], 1), (["--host", "cpu"], 0)):
            main([*command, *host])
            shown = capsys.readouterr()
            assert shown.err.count(note) == count and note not in shown.out
            assert count == 0 or 'pip install "mlxr[cuda]"' in shown.err
