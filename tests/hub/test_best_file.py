"""Which of several GGUF models is fetched if nobody says: by the plan of its first bytes."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from gguf import GGUFReader, GGUFWriter
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

from mlxr.cli import main
from mlxr.compiler.errors import WeightsError
from mlxr.hub import HubError
from mlxr.hub.best_file import Need, best_file
from mlxr.hub.choose_files import HubFile
from mlxr.loading.options import LoadOptions
from mlxr.loading.planned_memory import planned_memory
from mlxr.registry.registry import Registry
from mlxr_tests.stand_in_hub import StandInHub, the_hub
from mlxr_tests.storyteller import TINY

# Of bartowski/Meta-Llama-3.1-8B-Instruct-GGUF, sizes in bytes as the hub lists them, rounded.
LLAMA = {
    "F32/L-F32-00001-of-00002.gguf": 20 << 30, "F32/L-F32-00002-of-00002.gguf": 12 << 30, "L-Q8_0.gguf": 8540 << 20,
    "L-Q6_K.gguf": 6600 << 20, "L-Q5_K_M.gguf": 5730 << 20, "L-Q4_K_M.gguf": 4920 << 20, "L-Q4_K_S.gguf": 4690 << 20,
    "L-IQ4_XS.gguf": 4450 << 20, "L-Q3_K_M.gguf": 4020 << 20, "L-IQ3_M.gguf": 3780 << 20, "L-Q2_K.gguf": 3180 << 20,
}  # fmt: skip


def choice(names: dict[str, int], free: int, unsupported: Sequence[str] = ()) -> tuple[str, str]:
    """What is chosen by sizes alone, and what is said of it."""
    models: dict[str, tuple[HubFile, ...]] = {}
    for name, size_bytes in names.items():
        key = name.split("-0000")[0].removesuffix(".gguf") + ".gguf"
        models[key] = (*models.get(key, ()), HubFile(name, size_bytes, "0" * 64))
    told: list[str] = []

    def plan(path: Path | None) -> Need:
        return Need(None, free, "this machine")

    def start_of(file: HubFile, begin: int, end: int) -> bytes | None:
        if file.path in unsupported:
            raise WeightsError("a type that nobody knows")
        return None

    files = best_file("o/r", models, plan, start_of, told.append)
    return files[0].path, told[0]


@pytest.mark.parametrize(
    ("free", "chosen"),
    [
        (100 << 30, "L-Q4_K_M.gguf"),
        (5300 << 20, "L-Q4_K_S.gguf"),
        (4500 << 20, "L-Q3_K_M.gguf"),
        (3600 << 20, "L-Q2_K.gguf"),
    ],
)
def test_the_usual_one_comes_first_and_then_what_fits(free: int, chosen: str) -> None:
    path, why = choice(LLAMA, free)
    assert path == chosen and "of the 10 GGUF models of o/r" in why
    assert ("Q4_K_M takes" in why) is (chosen != "L-Q4_K_M.gguf")


def test_what_there_is_where_the_usual_one_is_not() -> None:
    qat = {"gemma-3-4b-it-q4_0.gguf": 3 << 30, "gemma-3-4b-it-f16.gguf": 8 << 30}
    assert choice(qat, 1 << 40)[0] == "gemma-3-4b-it-q4_0.gguf"
    assert choice({"a-f16.gguf": 8, "a-Q8_0.gguf": 4}, 1 << 40)[0] == "a-Q8_0.gguf"
    assert choice({"m-UD-Q4_K_XL.gguf": 4, "m-UD-Q2_K_XL.gguf": 2}, 1 << 40)[0] == "m-UD-Q4_K_XL.gguf"
    assert choice(LLAMA, 1 << 40, ["L-Q4_K_M.gguf"])[0] == "L-Q4_K_S.gguf", "another one may be supported"


def test_what_is_said_where_none_can_be_chosen() -> None:
    with pytest.raises(HubError, match=r"none of its 10 GGUF models fits into the 1.0 GiB .* o/r:F32"):
        choice(LLAMA, 1 << 30)
    with pytest.raises(HubError, match=r"several are alike: a-Q4_K_M.gguf, b-Q4_K_M.gguf; name one, as o/r:a-Q4_K_M"):
        choice({"a-Q4_K_M.gguf": 4, "b-Q4_K_M.gguf": 2, "a-Q8_0.gguf": 8}, 1 << 40)
    with pytest.raises(WeightsError, match="a type that nobody knows"):
        choice({"a-Q4_0.gguf": 4, "a-Q8_0.gguf": 8}, 1 << 40, ["a-Q4_0.gguf", "a-Q8_0.gguf"])


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    """A hub that has the tiny model as Q8_0, and a "Q4_K_M" that is the same with other metadata."""
    other = tmp_path / "other.gguf"
    copy_with_new_metadata(GGUFReader(TINY), GGUFWriter(other, "llama"), {"general.description": _text("x")}, [])
    files = {"m-Q8_0.gguf": TINY.read_bytes(), "m-Q4_K_M.gguf": other.read_bytes(), "mmproj-m-f16.gguf": b"GGUF"}
    with the_hub(StandInHub({"org/m": files}), tmp_path, monkeypatch) as hub:
        yield hub


def _text(value: str) -> MetadataDetails:
    from gguf import GGUFValueType

    return MetadataDetails(GGUFValueType.STRING, value)


def test_memory_is_that_of_the_plan_before_anything_is_fetched(
    hub: StandInHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", "org/m", "--host", "cpu", "--json"]) == 0
    told = capsys.readouterr()
    model = Registry().get("org/m")
    assert model is not None and model.source.name == "m-Q4_K_M.gguf"
    first = hub.fetched()[0]
    assert first.startswith("m-Q4_K_M.gguf bytes=0-")
    needed = planned_memory(model.source, LoadOptions(host="cpu")).least
    assert f"m-Q4_K_M.gguf, the usual one; by its plan it takes {needed / 2**20:.1f} MiB of the " in told.err
    assert json.loads(told.out)["name"] == "org/m"
    hub.asked.clear()
    assert main(["pull", "org/m"]) == 0
    assert Registry().get("org/m").source.name == "m-Q4_K_M.gguf"  # type: ignore[union-attr]
    assert not hub.fetched(), "what was chosen once stays"


def test_a_hub_that_sends_no_parts(hub: StandInHub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.ranges = False
    assert main(["pull", "org/m", "--host", "cpu"]) == 0
    assert "m-Q4_K_M.gguf, the usual one; by its plan it takes" in capsys.readouterr().err
