"""The text report: totals, folding, and any width of terminal."""

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.inspect.launches import phase_rows
from mlxr.inspect.report import report
from mlxr.inspect.text_table import Ink
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.storyteller import storyteller_spec

PLAIN = Ink(False)


@pytest.fixture(scope="module")
def storyteller() -> Artifact:
    return compile_spec(storyteller_spec(cache={"max_sequences": 4})).artifact


@pytest.mark.parametrize("width", [1, 20, 33, 60, 80, 100, 120, 160, 250])
@pytest.mark.parametrize("all_launches", [False, True])
def test_no_line_is_wider_than_the_terminal(storyteller: Artifact, width: int, all_launches: bool) -> None:
    lines = report(storyteller, width, PLAIN, all_launches).splitlines()
    assert max(map(len, lines)) <= max(width, 20)


@pytest.mark.parametrize("width", [20, 60, 120, 250])
def test_nothing_is_lost_in_a_narrow_terminal(storyteller: Artifact, width: int) -> None:
    wide = set(report(storyteller, 1000, PLAIN).split())
    narrow = "".join(report(storyteller, width, PLAIN).split())
    for word in wide - {"inputs", "outputs"}:  # a title that the line below does without
        assert word in narrow


def test_storyteller_in_120_columns(storyteller: Artifact) -> None:
    text = report(storyteller, 120, PLAIN)
    assert "32 launches (5 in each of 6 layers, 2 outside)" in text
    assert "38 launches (6 in each of 6 layers, 2 outside)" in text
    assert "layers 0-5: each row is 6 launches" in text
    row = next(line for line in text.splitlines() if " qkv_rows_" in line)
    assert "96 x ceil(tokens/8) x 1" in row
    assert "tokens >= 2" in row


def test_rows_times_what_they_stand_for_are_all_launches(storyteller: Artifact) -> None:
    for phase in phase_rows(storyteller, "metal"):
        assert sum(block.times * len(block.rows) for block in phase.blocks) == len(phase.rows)


def test_long_contexts_are_counted_apart() -> None:
    artifact = compiled(small_spec(), Geometry.of(partition=16))
    text = report(artifact, 200, PLAIN)
    assert "1 sequence or 3 sequences: 12 launches" in text
    assert "1 sequence of more than 16 tokens: 14 launches (6 in each of 2 layers, 2 outside)" in text


def test_one_layer_and_one_sequence() -> None:
    text = report(compiled(small_spec(model__num_layers=1, cache__max_sequences=1)), 200, PLAIN)
    assert "layer 0: each row is 1 launch" in text
    assert "copy_blocks" in text, "its blocks are restored, though never shared"


def test_ink_adds_escape_codes_only() -> None:
    artifact = compiled(small_spec())
    inked = report(artifact, 100, Ink(True))
    assert "\x1b[1m" in inked
    for code in ("\x1b[1m", "\x1b[2m", "\x1b[0m"):
        inked = inked.replace(code, "")
    assert inked == report(artifact, 100, PLAIN)
