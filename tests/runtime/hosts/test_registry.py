"""The registry of hosts: what it finds, that it is light, and that a new host needs two files and no other change."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mlxr
from mlxr.cli import main
from mlxr.compiler.errors import HostError
from mlxr.runtime import hosts as package
from mlxr.runtime.hosts.mlx.host import MlxHost
from mlxr.runtime.hosts.registry import host_choices, hosts
from mlxr_tests.storyteller import ANSWER, PROMPT, Q8_0

_IMPORT = """
import os, sys
sys.path[:] = {path}
before = dict(os.environ)
from mlxr.runtime.hosts.registry import hosts
print(list(hosts()))
print([name for name in ("mlx", "numpy", "pydantic", "yaml", "jinja2") if name in sys.modules])
import mlxr.runtime.engine.model
for host in hosts().values():
    host.load()
print(os.environ == before)
"""

_RECORD = '''
"""Host toy: runs what an existing host runs."""

from mlxr.runtime.hosts.entry import HostEntry


def _load():
    from mlxr.runtime.hosts.toy.host import ToyHost

    return ToyHost


HOST = HostEntry(name="toy", summary="a toy", target="metal", load=_load, cached="toys")
'''
_HOST = '''
"""The toy host."""

from mlxr.runtime.hosts.reference.host import ReferenceHost


class ToyHost(ReferenceHost):
    """Runs the source graph, and counts its steps."""

    name = "toy"

    def step(self, batch):
        self.count("toy_step")
        return super().step(batch)
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of hosts beside ours, with host toy in it."""
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "__init__.py").write_text(_RECORD)
    (folder / "host.py").write_text(_HOST)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    hosts.cache_clear()
    yield folder
    hosts.cache_clear()
    for name in [name for name in sys.modules if name.startswith("mlxr.runtime.hosts.toy")]:
        del sys.modules[name]
    vars(package).pop("toy", None)


def test_every_name_has_its_host() -> None:
    assert host_choices() == ("auto", "metal", "cuda", "cpu", "sim", "reference")
    for name, entry in hosts().items():
        host = entry.load()
        assert entry.name == host.name == name
        assert entry.target == host.target
        assert entry.calls_mlx is issubclass(host, MlxHost)


def test_the_registry_loads_no_mlx_and_loading_hosts_changes_no_environment_variable() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _IMPORT.format(path=sys.path)], capture_output=True, text=True, check=True
    )
    names, loaded, unchanged = run.stdout.splitlines()
    assert names == str(list(hosts()))
    assert loaded == "[]"
    assert unchanged == "True"


def test_a_new_host_is_two_files(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(path.name for path in toy.iterdir() if path.is_file()) == ["__init__.py", "host.py"]
    prompt = [1, 403, 27]
    answers = []
    for host in ("toy", "reference"):
        with mlxr.load("storyteller", Q8_0, host=host) as model:
            assert (model.host.name, model.types.target) == (host, "metal")
            answers.append(model.generate(prompt, max_tokens=4).token_ids)
            assert (model.host.launches["toy_step"] == 4) is (host == "toy")
    assert answers[0] == answers[1]
    greedy = ["--max-tokens", "4", "--temperature", "0"]
    assert main(["run", "storyteller", "--host", "toy", "--prompt", PROMPT, *greedy]) == 0
    assert capsys.readouterr().out == f"{ANSWER}\n"
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "reference (MLX ops), toy (a toy)" in " ".join(capsys.readouterr().out.split())
    assert main(["cache", "list"]) == 0
    assert "toys" in capsys.readouterr().out
    with pytest.raises(HostError, match="the number of threads is for host cpu; host toy takes none"):
        mlxr.load("storyteller", Q8_0, host="toy", threads=1)
    with pytest.raises(HostError, match="hosts are auto, metal, cuda, cpu, sim, reference, toy"):
        mlxr.load("storyteller", Q8_0, host="boy")


def test_folders_and_records_have_the_same_names(toy: Path) -> None:
    (toy / "__init__.py").write_text(_RECORD.replace('name="toy"', 'name="boy"'))
    with pytest.raises(AssertionError, match="the record in hosts/toy says that its name is 'boy'"):
        hosts()


def test_a_folder_that_hosts_share_has_no_record() -> None:
    assert "mlx" not in hosts()
