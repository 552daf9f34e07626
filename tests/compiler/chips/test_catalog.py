"""Chips: files that are read or refused with a place, names and devices that find them, kernels for each of them."""

import json
from itertools import combinations, product
from pathlib import Path

import pytest

import mlxr
from mlxr.compiler.artifact import load_artifact
from mlxr.compiler.artifact.geometry_rule import GeometryRule
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.chips.catalog import GENERIC, chips_of, find_chip, find_chip_of_device, known_chips
from mlxr.compiler.cli import main
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import ArtifactError, PlanError, SpecError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr_tests.family_specs import family_spec
from mlxr_tests.few import few
from mlxr_tests.specs import small_spec

RULE = "geometry: [{sizes: {%s}, because: a reason, origin: measured}]\nchips: {one: {title: One}}\nabout: text\n"


# Of Apple's chips, each generation's smallest is short.
@pytest.mark.parametrize("name", few(known_chips(), [name for name in known_chips() if "-" not in name]))
def test_every_chip_has_kernels_for_every_kind_of_launch(name: str) -> None:
    for spec in (small_spec(), family_spec("experts-shared-gate")):
        artifact = compile_spec(spec, targets=("metal",), chip=find_chip(name)).artifact
        assert artifact.chip == find_chip(name)
        assert any(kernel.chosen for kernel in artifact.plan.first.kernels)


BITS = {"q8_0": 8.5, "q4_k": 4.5, "q5_k": 5.5, "q6_k": 6.5625, "bf16": 16, "f32": 32, "affine4_g64_bf16": 4.5}


def edges(rules: list[GeometryRule], what: str) -> list[int]:
    """Outputs or columns, each of which meets other conditions than those before it."""
    first = {getattr(rule, f"min_{what}") or 1 for rule in rules} | {1}
    return sorted(first | {most + 1 for rule in rules if (most := getattr(rule, f"max_{what}"))})


@pytest.mark.parametrize("name", ["m3-max", "rtx-4090", "h200"])
def test_rules_agree_wherever_they_meet(name: str) -> None:
    """Also for formats, and mixtures of formats, that no model has on which a rule was measured."""
    rules, sites = find_chip(name).geometry, dict[tuple[int, ...], Site]()
    for label in {label for rule in rules for label in rule.labels}:
        of_label = [rule for rule in rules if not rule.labels or label in rule.labels]
        for formats in [(one,) for one in BITS] + list(combinations(("q4_k", "q5_k", "q6_k", "q8_0"), 2)):
            own = [rule for rule in of_label if not rule.formats or set(formats) <= set(rule.formats)]
            bits = sum(BITS[each] for each in formats) / len(formats)
            for outputs, columns in product(edges(own, "outputs"), edges(own, "columns")):
                site = Site(label, outputs, columns, formats, bits)
                sites[tuple(id(rule) for rule in own if rule.holds(site))] = site
    table = GeometryTable(rules=rules)
    assert all(table.choose(site) for site in sites.values())


def test_the_generic_chip_changes_nothing() -> None:
    chip = find_chip(GENERIC)
    assert next(iter(known_chips())) == GENERIC
    assert (chip.geometry, chip.figures) == ((), None)
    assert compile_spec(small_spec()).artifact.files == compile_spec(small_spec(), chip=chip).artifact.files


def test_all_others_have_figures_that_say_where_they_are_from() -> None:
    for chip in known_chips().values():
        if chip.name not in (GENERIC, "nvidia"):
            assert chip.figures
            assert chip.figures.bandwidth_gb_per_s.origin in ("measured", "published")
            assert chip.figures.matmul_tflops.value >= chip.figures.f32_tflops.value


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("Apple M1", "m1"),
        ("Apple M3 Max", "m3-max"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("Apple M17", None),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 3090", "nvidia"),
        ("AMD Radeon", None),
        ("", None),
    ],
)
def test_a_device_finds_its_chip(device: str, name: str | None) -> None:
    chip = find_chip_of_device(device)
    assert (chip and chip.name) == name


def test_devices_do_not_share_names() -> None:
    devices = [chip.device for chip in known_chips().values() if chip.device]
    assert len(set(devices)) == len(devices)
    assert all(find_chip_of_device(chip.device) == chip for chip in known_chips().values() if chip.device)


def test_an_unknown_chip_is_refused_with_those_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["storyteller", "--chip", "m3max"]) == 1
    message = capsys.readouterr().err
    assert "there is no chip 'm3max'; known chips are generic, m1," in message
    assert "h200" in message
    assert 'did you mean "m3-max"?' in message
    with pytest.raises(PlanError, match="there is no chip 'm9'"):
        mlxr.compile("storyteller", chip="m9")


def test_the_chip_is_recorded_in_the_artifact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["storyteller", "--chip", "h200", "-o", str(tmp_path / "one"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chip"] == "h200"
    artifact = load_artifact(tmp_path / "one")
    assert artifact.chip == find_chip("h200")
    assert artifact.files == mlxr.compile("storyteller", chip="h200").files
    (tmp_path / "one" / "chip.json").unlink()
    with pytest.raises(ArtifactError, match=r"chip\.json"):
        load_artifact(tmp_path / "one")


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (RULE % "matvec_rows: 2", "1:20", 'sizes: "matvec_rows" is not a size of the geometry'),
        (RULE % "matvec_outputs: -1", "1:37", "matvec_outputs is -1; expected a whole number of at least 0"),
        (RULE % "", "1:20", "has 0 items; expected at least 1"),
        (RULE.replace("origin: measured", "origin: guessed") % "partition: 64", "1:64", 'origin is "guessed"'),
        ("about: text\nchips: {}\n", "2:8", "chips"),
        ("about: text\nchips:\n  one: {titel: One}\n", "3:9", "unknown key chips.one.titel"),
        (
            "about: text\nchips: {one: {title: One, figures: {launch_us: {value: 0, origin: measured}}}}\n",
            "2:56",
            "value is 0; expected a number greater than 0",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(text: str, place: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        chips_of(text, "mine.yaml")
    assert f"mine.yaml:{place}: " in str(error.value)
    assert message in str(error.value)


def test_geometry_that_a_caller_gives_is_what_rules_change() -> None:
    chip = chips_of(RULE % "matvec_outputs: 2", "mine.yaml")["one"]
    plan = compile_spec(
        small_spec(), Geometry.of(matvec_simdgroups=4, matvec_outputs=8), ("metal",), chip
    ).artifact.plan
    qkv = next(kernel for kernel in plan.first.kernels if kernel.label == "qkv")
    assert qkv.threads == 4 * 32
    assert qkv.chosen
    assert dict(qkv.chosen.sizes)["matvec_outputs"] == 2
    assert dict(qkv.chosen.why) == {"matvec_outputs": "a reason (measured)"}
