"""`mlxr serve --detach`, `mlxr ps` and `mlxr stop`."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from mlxr.cli import main
from mlxr.compiler.errors import HostError
from mlxr.server.life import control
from mlxr.server.life.state_file import StateFile, running_servers, start_of, url_for_others
from mlxr_tests.serve_process import wait_for
from mlxr_tests.storyteller import ROOT, TINY


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLXR_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('code of the current folder ran')")
    return tmp_path


def test_a_server_in_the_background(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = folder / "keys"
    keys.write_text("# a comment is no key\n\nsecret\n")
    serve = ["serve", "--model", f"tiny={TINY}", "--port", "0", "--api-key-file", str(keys)]
    assert main([*serve, "--pin", "tinny", "--detach"]) == 1
    assert "--pin tinny: no model of that name is served; there are tiny" in capsys.readouterr().err
    assert main([*serve, "--pin", "tiny", "--detach"]) == 0
    try:
        assert main(["ps", "--json"]) == 0
        told, rows = capsys.readouterr().out.split("\n", 1)
        (server,) = json.loads(rows)["servers"]
        assert server["url"] in told and server["state"] == "serving"
        assert [(model["name"], model["state"], model["pinned"]) for model in server["models"]] == [
            ("tiny", "cold", True)
        ]
        for key, status in ((None, 401), ("# a comment is no key", 401), ("secret", 200)):
            headers = {} if key is None else {"x-api-key": key}
            assert httpx.get(f"{server['url']}/status", headers=headers).status_code == status
        assert (folder / "servers" / "serve.log").stat().st_mode & 0o777 == 0o600
        assert os.getsid(server["pid"]) == server["pid"]
        port = str(server["port"])
        assert main([*serve[:3], "--port", port, "--detach"]) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: the server did not start (exit code 1): cannot listen at 127.0.0.1 port ")
        assert main(["ps"]) == 0
        assert capsys.readouterr().out.split()[4:] == [server["url"], str(server["pid"]), "serving", "tiny", "(cold)"]
        assert main(["stop", "1"]) == 1
        assert f"no server of yours listens at port 1; yours listen at {port}" in capsys.readouterr().err
    finally:
        assert main(["stop", "--all"]) == 0
    assert capsys.readouterr().out.startswith(f"stopped {server['url']}")
    assert main(["stop"]) == 1
    assert main(["ps"]) == 0
    assert "no server is running" in capsys.readouterr().out


@pytest.mark.long
def test_an_address_for_other_machines_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where this machine has one; 0.0.0.0 is none that a browser or a client could ask."""
    assert url_for_others("127.0.0.1", 1) == ""
    serve = ["serve", "--model", f"tiny={TINY}", "--port", "0", "--address", "0.0.0.0", "--allow-open", "--detach"]
    assert main(serve) == 0
    try:
        told = capsys.readouterr().out
        urls = re.findall(r"http://[\d.]+:\d+", told)
        assert urls[0].startswith("http://127.0.0.1:") and "0.0.0.0" not in told
        assert [httpx.get(f"{url}/health").status_code for url in urls] == [200] * len(urls)
        others = url_for_others("0.0.0.0", int(urls[0].rpartition(":")[2]))
        assert urls[1:] == [others] * bool(others)
    finally:
        assert main(["stop", "--all"]) == 0


@pytest.fixture
def sleeper() -> "subprocess.Popen[bytes]":
    """A process that does not answer, and whose number is not used again before it is waited for."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def test_what_is_left_of_servers(
    folder: Path,
    sleeper: "subprocess.Popen[bytes]",
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Files of ended servers are removed; those of other machines, and of what is no server, stay."""
    own = StateFile.of_this_process("0.0.0.0", 1, 0.0, "token")
    assert own.url == "http://127.0.0.1:1"
    deaf = replace(own, pid=sleeper.pid, start=start_of(sleeper.pid) or "", port=2)
    again = replace(own, pid=os.getppid(), start="another start")
    elsewhere = replace(again, machine="elsewhere")
    for state in (deaf, again, elsewhere):
        state.write()
    (folder / "servers" / "notes.json").write_text("{}")
    assert running_servers() == [deaf]
    assert sorted(path.name for path in (folder / "servers").iterdir()) == sorted(
        [deaf.path.name, elsewhere.path.name, "notes.json"]
    )
    assert main(["ps"]) == 0
    assert "not answering" in capsys.readouterr().out
    monkeypatch.setattr(control, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(control.os, "kill", lambda pid, number: None)
    with pytest.raises(HostError, match=f"kill -9 {sleeper.pid} ends it"):
        control.end_server(deaf)
    monkeypatch.undo()
    sleeper.kill()
    wait_for(lambda: not deaf.is_running)  # it is dead, though nobody has waited for it
    sleeper.wait()


def test_a_folder_that_cannot_be_written_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "servers").touch()
    StateFile.of_this_process("127.0.0.1", 1, 0.0, "token").write()
    assert "warning: mlxr ps and mlxr stop will not find this server" in capsys.readouterr().err
