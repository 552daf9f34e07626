"""`mlxr service`, with programs that stand for systemctl and launchctl."""

import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlxr.cli import main
from mlxr.server.life import service

ARGUMENTS = ["--model", 'a=./it\'s 100% $HOME "b" \\c.gguf', "--grace", "5s", "--port", "0"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose managers of services write down what they are asked; `refuse` makes them fail."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("MLXR_THREADS_OF_TEST", "5 %")
    monkeypatch.chdir(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("systemctl", "launchctl"):
        (programs / name).write_text(
            f'#!/bin/sh\necho "$@" >> "{tmp_path}/asked"\n'
            f'[ ! -e "{tmp_path}/refuse" ] || {{ echo no bus >&2; exit 3; }}\n'
        )
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return tmp_path


def asked(home: Path) -> list[str]:
    path = home / "asked"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


@pytest.mark.skipif(sys.platform != "linux", reason="systemd")
def test_a_systemd_unit(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "/models")  # else it would fetch again what is there
    assert main(["service", "install", "--print", "--", *ARGUMENTS]) == 0
    text = capsys.readouterr().out
    unit = home / ".config/systemd/user/mlxr.service"
    assert not unit.exists() and asked(home) == []
    assert f'ExecStart="{sys.executable}" "-P" "-m" "mlxr.cli" "serve" "--model" ' in text
    assert '"a=./it\'s 100%% $$HOME \\"b\\" \\\\c.gguf" "--grace" "5s"' in text
    assert "TimeoutStopSec=65\n" in text and 'Environment="MLXR_THREADS_OF_TEST=5 %%"\n' in text
    assert f"WorkingDirectory={home}\n" in text and 'Environment="HF_HUB_CACHE=/models"\n' in text
    assert main(["service", "install", "--", *ARGUMENTS]) == 0
    assert unit.read_text() == text
    assert asked(home) == ["--user daemon-reload", "--user enable mlxr.service", "--user restart mlxr.service"]
    if shutil.which("systemd-analyze"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
        command = ["systemd-analyze", "verify", "--user", str(unit)]
        checked = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")
    assert main(["service", "remove"]) == 0
    assert not unit.exists()
    assert asked(home) == ["--user disable --now mlxr.service", "--user daemon-reload"]
    capsys.readouterr()
    assert main(["service", "remove"]) == 0
    assert capsys.readouterr().out == "there is no service of mlxr\n" and asked(home) == []


def test_a_launchd_agent(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.sys, "platform", "darwin")
    assert main(["service", "install", "--", *ARGUMENTS]) == 0
    path = home / "Library/LaunchAgents/mlxr.serve.plist"
    agent = plistlib.loads(path.read_bytes())
    assert agent["ProgramArguments"] == [sys.executable, "-P", "-m", "mlxr.cli", "serve", *ARGUMENTS]
    assert agent["ExitTimeOut"] == 65 and agent["KeepAlive"] == {"SuccessfulExit": False}
    assert agent["EnvironmentVariables"]["MLXR_THREADS_OF_TEST"] == "5 %"
    assert [line.split()[0] for line in asked(home)] == ["bootout", "bootstrap"]
    assert main(["service", "remove"]) == 0
    assert not path.exists() and [line.split()[0] for line in asked(home)] == ["bootout"]


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_what_is_missing_or_refuses(
    home: Path, platform: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service.sys, "platform", platform)
    install = ["service", "install", "--", "storyteller"]
    (home / "refuse").touch()
    assert main(install) == 1
    told = capsys.readouterr().err
    assert (
        "no bus; mlxr serve --detach starts" in told
        if platform != "win32"
        else "services need systemd or launchd" in told
    )
    assert not [path for path in home.rglob("mlxr*") if path.is_file()]
    monkeypatch.setenv("PATH", str(home))
    assert main(install) == 1
    assert platform == "win32" or "ctl is not on this machine: start mlxr serve --detach" in capsys.readouterr().err


def test_mistakes_are_told_before_anything_is_installed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["service", "install", "--", "storyteller", "--nonsense"])
    assert "there is no option --nonsense" in capsys.readouterr().err
    assert main(["service", "install", "--", "storyteller", "--detach"]) == 1
    assert "leave --detach out" in capsys.readouterr().err and asked(home) == []
