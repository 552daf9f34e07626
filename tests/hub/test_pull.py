"""`mlxr pull` and `mlxr run org/repo` against a server that speaks the hub's protocol, and fails in its ways."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mlxr.cli import main
from mlxr.hub import HubError
from mlxr.hub.best_file import Need
from mlxr.hub.fetch import fetch
from mlxr.hub.reference import HubReference, hub_reference
from mlxr.loading.options import LoadOptions
from mlxr.loading.planned_memory import planned_memory
from mlxr.registry.registry import Registry
from mlxr_tests.family_models import build_model, config_of, save_folder
from mlxr_tests.stand_in_hub import TOKEN, StandInHub, the_hub
from mlxr_tests.storyteller import ROOT, TINY

constants: Any = pytest.importorskip("huggingface_hub.constants")
Usage = namedtuple("Usage", "total used free")
RUN = ["--temperature", "0", "--prompt", "Once", "--max-tokens", "3", "--host", "reference", "--json"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    """A hub with one GGUF model; registry, cache and huggingface_hub's cache are empty."""
    hub = StandInHub({"org/tiny": {"tiny-Q8_0.gguf": TINY.read_bytes(), "README.md": b"# Tiny", "run.py": b"1 / 0"}})
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with the_hub(hub, tmp_path, monkeypatch):
        yield hub


def refused(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(command.split()) == 1
    assert Registry().names() == ()
    return capsys.readouterr().err


def test_a_model_is_fetched_once_and_runs_by_its_name(hub: StandInHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "org/tiny", *RUN]) == 0
    told = capsys.readouterr()
    assert "fetching org/tiny: 1 file, 1.5 MiB\n" in told.err
    assert hub.fetched() == ["tiny-Q8_0.gguf"] * 2, "and where the hub redirects to; no code"
    asked = len(hub.asked)
    assert main(["run", "org/tiny", *RUN]) == main(["run", str(TINY), *RUN]) == 0
    assert len(hub.asked) == asked, "what is here needs no hub"
    first, second, third = (json.loads(text)["token_ids"] for text in [told.out, *capsys.readouterr().out.splitlines()])
    assert first == second == third
    model = Registry().get("org/tiny")
    assert model is not None and model.source.read_bytes() == TINY.read_bytes()
    assert main(["pull", "org/tiny", "--json"]) == 0
    assert hub.fetched() == ["tiny-Q8_0.gguf"] * 2
    hub.repos["org/tiny"]["tiny-Q8_0.gguf"] = (ROOT / "tests/data/golden/tiny-Q4_0.gguf").read_bytes()
    assert main(["pull", "org/tiny", "--json"]) == 0
    newer = Registry().get("org/tiny")
    assert newer is not None and newer.source != model.source and model.source.exists()
    assert main(["show", "org/tiny", "--verify"]) == main(["remove", "org/tiny"]) == 0
    assert newer.source.exists()


def test_a_tokenizer_that_is_refused_is_told_before_weights_are_fetched(
    hub: StandInHub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.repos["org/odd"] = {
        "config.json": json.dumps(config_of("qwen3")).encode(),
        "tokenizer.json": b'{"version": "9.0"}',
        "model.safetensors": bytes(1 << 20),
    }
    assert "tokenizer.json: corrupt, or not of a kind that is known" in refused("pull org/odd", capsys)
    assert {name.split()[0] for name in hub.fetched()} == {"config.json", "tokenizer.json"}


def test_a_gguf_file_whose_tokenizer_is_refused_is_not_fetched_whole(
    hub: StandInHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mlxr.hub.fetch._WORTH_A_LOOK", 1 << 20)
    kind = b"tokenizer.ggml.model" + bytes([8, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0])
    hub.repos["org/odd"] = {"odd-Q8_0.gguf": TINY.read_bytes().replace(kind + b"llama", kind + b"other")}
    assert "its tokenizer is of the kind 'other', which is not supported" in refused("pull org/odd", capsys)
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.gguf"))


def test_a_folder_comes_without_code(hub: StandInHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of("qwen3")
    folder = save_folder(build_model(config), config, tmp_path / "made")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModelForCausalLM": "evil.Evil"}}))
    part = "model-00001-of-00001.safetensors"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"] = dict.fromkeys(index["weight_map"], part)
    evil = "open('evil', 'w')"
    hub.repos["org/folder"] = {
        "config.json": (folder / "config.json").read_bytes(),
        "generation_config.json": b"{}",
        "evil.py": evil.encode(),
        "pytorch_model.bin": evil.encode(),
        "consolidated.safetensors": whole,
        "model.safetensors.index.json": json.dumps(index).encode(),
        part: whole,
    }
    assert main(["pull", "org/folder", "--name", "mine", "--context", "32"]) == 0
    told = capsys.readouterr()
    assert "added mine: " in told.out and "fetching org/folder: 4 files, " in told.err and "already" not in told.err
    fetched = {name.split()[0] for name in hub.fetched()}
    assert fetched == set(hub.repos["org/folder"]) - {"evil.py", "pytorch_model.bin", "consolidated.safetensors"}
    assert main(["pull", "org/folder", "--name", "mine"]) == 0, "again: newer files, the same options"
    model = Registry().get("mine")
    assert model is not None and (model.kind, model.options.changes.context) == ("folder", 32)
    assert not Path("evil").exists()
    assert {file.path.name for file in model.files} == fetched
    hub.repos["org/other"] = {"config.json": b'{"model_type": "unknown"}', "model.safetensors": whole}
    assert main(["pull", "org/other"]) == 1
    assert 'model_type is "unknown"; that is not supported' in capsys.readouterr().err
    assert hub.fetched()[-1] == "config.json", "nothing large was fetched for a model that cannot run"


def test_a_folder_that_takes_too_much_memory_is_not_fetched(
    hub: StandInHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("mlxr.hub.fetch._WORTH_A_LOOK", 1)
    config = config_of("qwen3")
    folder = save_folder(build_model(config), config, tmp_path / "made")
    hub.repos["org/folder"] = {path.name: path.read_bytes() for path in folder.iterdir()}
    free = 1
    planned: list[int | None] = []

    def plan(path: Path | None) -> Need:
        planned.append(None if path is None else planned_memory(path, LoadOptions(host="cpu")).good)
        return Need(planned[-1], free, "this machine")

    def get(name: str) -> Path:
        reference = hub_reference(name)
        assert reference is not None
        return fetch(reference, announce=lambda text: None, progress=lambda *state: None, plan=plan).path

    with pytest.raises(HubError, match=r"by its plan it takes .* has 1 B free: .* all the same, as org/folder:safet"):
        get("org/folder")
    whole = [name for name in hub.fetched() if name.startswith("model.safetensors") and "index" not in name]
    assert whole and all(" bytes=0-" in name for name in whole) and not list((tmp_path / "hub").rglob("*.safetensors"))
    free = planned[0] or 0
    there, size_bytes = get("org/folder"), (folder / "model.safetensors").stat().st_size
    assert planned == 2 * [planned_memory(there, LoadOptions(host="cpu")).good] and free > size_bytes
    shutil.rmtree(tmp_path / "hub")
    free = 1
    assert (get("org/folder:safetensors") / "model.safetensors").stat().st_size == size_bytes


def test_a_connection_that_breaks(hub: StandInHub, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """huggingface_hub tries again by itself; what is left when it gives up, the next command goes on from."""
    hub.breaks["tiny-Q8_0.gguf"] = [200_000, 400_000]
    assert main(["pull", "org/tiny"]) == 0
    ranges = sorted({name.partition(" ")[2] for name in hub.fetched()})
    assert len(ranges) == 3 and all(part.startswith("bytes=") for part in ranges[1:])
    for name in ("hub", "data"):
        shutil.rmtree(tmp_path / name)
    hub.breaks["tiny-Q8_0.gguf"] = [300_000, *[0] * 6]
    told = refused("pull org/tiny", capsys)
    assert "cannot be reached" in told and "the same command goes on from there" in told
    (left,) = (tmp_path / "hub").rglob("*.mlxr.incomplete")
    size = left.stat().st_size
    assert 200_000 < size <= 300_000
    hub.asked.clear()
    assert main(["pull", "org/tiny"]) == 0
    assert "1.5 MiB, 288.0 KiB of it here already" in capsys.readouterr().err
    assert hub.fetched()[0] == f"tiny-Q8_0.gguf bytes={size}-"
    assert not list((tmp_path / "hub").rglob("*.incomplete"))
    assert main(["show", "org/tiny", "--verify"]) == 0


def test_a_hub_that_sends_no_parts(hub: StandInHub) -> None:
    hub.ranges = False
    hub.breaks["tiny-Q8_0.gguf"] = [300_000]
    assert main(["pull", "org/tiny"]) == 0
    assert main(["show", "org/tiny", "--verify"]) == 0


def test_a_revision(hub: StandInHub, capsys: pytest.CaptureFixture[str]) -> None:
    old = (ROOT / "tests/data/golden/tiny-Q4_0.gguf").read_bytes()
    hub.revisions["org/tiny", "v1"] = {"tiny-Q8_0.gguf": old, "tiny-Q4_0.gguf": old}
    (newest, first) = hub.commits("org/tiny")
    contents = {"org/tiny": TINY.read_bytes(), "org/tiny@v1:Q8": old, f"org/tiny@{first}:Q8": old}
    for name, content in contents.items():
        assert main(["pull", name]) == 0
        model = Registry().get(name)
        assert model is not None and model.source.read_bytes() == content, name
        assert (newest if name == "org/tiny" else first) in model.source.parts
    assert main(["run", "org/tiny@v1:Q8", *RUN]) == 0
    assert hub.fetched() == ["tiny-Q8_0.gguf"] * 4, "two contents, each from where a redirection leads"
    capsys.readouterr()
    assert main(["run", "org/tiny@v9", *RUN]) == 1
    assert "org/tiny has no revision 'v9': after @ stands a branch, a tag or a commit" in capsys.readouterr().err


def test_two_that_fetch_the_same(hub: StandInHub) -> None:
    reference = HubReference("org/tiny")

    def get(_: int) -> Path:
        need = Need(None, 1, "nobody")
        return fetch(reference, announce=lambda text: None, progress=lambda *state: None, plan=lambda path: need).path

    with ThreadPoolExecutor(4) as threads:
        paths = set(threads.map(get, range(4)))
    assert len(paths) == 1 and paths.pop().read_bytes() == TINY.read_bytes()
    assert hub.fetched() == ["tiny-Q8_0.gguf"] * 2


def test_a_wrong_hash(hub: StandInHub, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    right = hub.repos["org/tiny"]["tiny-Q8_0.gguf"]
    hub.content["tiny-Q8_0.gguf"] = right[:-1] + bytes([right[-1] ^ 1])
    assert "tiny-Q8_0.gguf arrived damaged" in refused("pull org/tiny", capsys)
    assert not [path for path in (tmp_path / "hub").rglob("*") if path.is_file()], "nothing damaged stays"
    hub.content.clear()
    assert main(["pull", "org/tiny"]) == 0
    model = Registry().get("org/tiny")
    assert model is not None
    main(["remove", "org/tiny"])
    model.source.resolve().write_bytes(right[:-1] + b"x")
    told = refused("pull org/tiny", capsys)
    assert f"remove {model.source.resolve()} and fetch it again" in told
    assert model.source.exists(), "what other programs may use is not removed"


def test_what_may_not_be_fetched(
    hub: StandInHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "has no model org/absent, or does not show it" in refused("pull org/absent", capsys)
    told = refused("run org/absent --prompt A", capsys)
    assert "org/absent: no such file, and no model of that name here; asking the hub" in told
    assert "has no model org/absent" in told
    hub.repos["org/gated"] = hub.repos["org/tiny"]
    hub.gated.add("org/gated")
    for token in (None, "hf_bad"):
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        told = refused("pull org/gated", capsys)
        assert f"org/gated is gated: accept its terms at {hub.address}/org/gated" in told
    for status, message in ((403, "refuses org/shut (403): the token"), (503, "answers with an error (503)")):
        hub.status["org/shut"] = status
        assert message in refused("pull org/shut", capsys)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert main(["pull", "org/gated"]) == 0


def test_a_full_disk(hub: StandInHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 1000))
        told = refused("pull org/tiny", capsys)
    assert "1.5 MiB are to be fetched, and 1000 B are free" in told and not hub.fetched()

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    assert "no space is left" in refused("pull org/tiny", capsys)


def test_what_is_said_without_a_hub(
    hub: StandInHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    told = refused("pull org/tiny", capsys)
    assert "http://127.0.0.1:9 cannot be reached" in told and "online?" in told and "kept" not in told
    assert "'tiny' is not a model on the hub; expected ORG/REPO, " in refused("pull tiny", capsys)
    (tmp_path / "build").mkdir()
    told = refused("run build/tiny --prompt A", capsys)
    assert "build/tiny: no such file" in told and "mlxr pull" not in told
    told = refused("bench org/tiny", capsys)
    assert "org/tiny: no such file" in told and "fix: mlxr pull org/tiny fetches it" in told
    assert not hub.asked


def test_a_name_that_is_another_models_is_kept(hub: StandInHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["add", str(TINY), "--name", "org/tiny"]) == 0
    assert main(["pull", "org/tiny"]) == 1
    assert "'org/tiny' is registered already" in capsys.readouterr().err
    assert not hub.asked
    assert main(["pull", "org/tiny", "--replace"]) == 0


def test_the_environment_names_hub_cache_and_token(hub: StandInHub, tmp_path: Path) -> None:
    hub.gated.add("org/tiny")
    ours = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN}
    environment = os.environ | ours | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mlxr.cli", "pull", "org/tiny:Q8", "--json", "--host", "reference"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["name"] == "org/tiny:Q8"
    assert list((tmp_path / "home" / "hub").rglob("tiny-Q8_0.gguf"))
