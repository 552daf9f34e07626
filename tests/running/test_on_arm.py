"""tests/on_arm.py where it cannot run anything, and its compiler."""

import importlib.util
import subprocess
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


def test_cc_compiles_for_the_cpu_that_is_played(
    on_arm: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    echo = tmp_path / "a compiler"
    echo.write_text('#!/bin/sh\necho "$@"\n')
    echo.chmod(0o755)
    monkeypatch.setattr(on_arm, "zig_executable", lambda: str(echo))

    def told(*features: str) -> list[list[str]]:
        on_arm.write_compiler(tmp_path / "cc", features)
        flags = ("-mcpu=native", "-march=armv8-a", "-march=armv8.2-a+dotprod")
        return [subprocess.check_output([tmp_path / "cc", flag, "a b"], text=True).split() for flag in flags]

    named = (("-mcpu=generic+dotprod+i8mm", "-mcpu=generic+dotprod"), ("-mcpu=generic", "-mcpu=generic+dotprod"))
    for features, (native, dotprod) in zip((("asimd", "asimddp", "i8mm", "sve"), ("asimd",)), named, strict=True):
        for words, cpu in zip(told(*features), (native, "-mcpu=generic", dotprod), strict=True):
            assert cpu in words and not [word for word in words if word.startswith("-march")]
    monkeypatch.setenv("MLXR_ARM_CC", str(echo))
    assert told("asimd", "asimdhp")[0][0] == "-march=armv8.2-a+fp16" and told("asimd")[0][0] == "-march=armv8-a"
    monkeypatch.setenv("MLXR_ARM_CC", "no-such-gcc")
    with pytest.raises(on_arm.MissingError, match="no no-such-gcc"):
        told()
