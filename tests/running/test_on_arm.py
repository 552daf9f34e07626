"""tests/on_arm.py where it cannot run anything."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from mlxr_tests.storyteller import ROOT


@pytest.fixture
def on_arm() -> ModuleType:
    spec = importlib.util.spec_from_file_location("on_arm", ROOT / "tests/on_arm.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_missing_is_told(
    on_arm: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path / "cache"))
    for found, missing in (((), "there is no qemu-aarch64"), (("qemu-aarch64",), "there is no apt-get")):
        for name in found:
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)
        assert on_arm.main([]) == 0
        assert capsys.readouterr().out.startswith(f"on_arm: nothing is run: {missing}")


def test_a_step_that_fails_is_told(on_arm: ModuleType) -> None:
    with pytest.raises(on_arm.MissingError, match=r"ls /absent failed: .*No such file"):
        on_arm.run("ls", "/absent")
