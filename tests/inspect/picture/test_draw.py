"""The picture: well-formed, complete, free of overlaps, and the same bytes every time."""

import functools
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise
from typing import NamedTuple

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.spec.catalog import bundled_specs, find_spec
from mlxr.compiler.spec.load import load_spec
from mlxr.inspect.picture.column import GraphColumn
from mlxr.inspect.picture.draw import draw_graphs, place_columns
from mlxr.inspect.picture.lines import arena_lines, token_lines, value_lines
from mlxr_tests.few import few
from mlxr_tests.specs import compiled, small_spec

SVG = "{http://www.w3.org/2000/svg}"


class Rect(NamedTuple):
    name: str
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "Rect") -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def with_two_kinds_of_layers(artifact: Artifact) -> Artifact:
    """Every other layer with a window."""
    files = dict(artifact.files)
    for name in ("source", "decode", "prefill"):
        graph = json.loads(files[f"graph.{name}.json"])
        for op in graph["ops"]:
            if "window" in op["attrs"] and op["layer"] % 2:
                op["attrs"]["window"] = 16
        files[f"graph.{name}.json"] = json.dumps(graph)
    return Artifact(files)


SMALL = {
    "two kinds of layers": lambda: with_two_kinds_of_layers(compiled(small_spec(model__num_layers=5))),
    "one layer": lambda: compiled(small_spec(model__num_layers=1)),
    "last rows": lambda: compiled(small_spec(model__num_layers=4), Geometry.of(chunk_last_rows=1)),
    "biases": lambda: compiled(small_spec(model__attention__qkv_bias=True)),
}


@functools.cache
def artifact_of(name: str) -> Artifact:
    return SMALL[name]() if name in SMALL else compile_spec(load_spec(find_spec(name))).artifact


@pytest.fixture(params=few(sorted([*bundled_specs(), *SMALL]), ["storyteller", "llama-3.2-1b", *SMALL]))
def artifact(request: pytest.FixtureRequest) -> Artifact:
    return artifact_of(request.param)


def rects(column: GraphColumn) -> list[Rect]:
    """Everything that holds text: boxes, labels and arenas."""
    _, pills = value_lines(column)
    _, token_pills = token_lines(column)
    _, arenas = arena_lines(column)
    found = [Rect(name, b.x, b.y, b.right, b.bottom) for name, b in column.boxes.items()]
    found += [
        Rect(f"label {p.text}", p.x - p.width / 2, p.y, p.x + p.width / 2, p.y + 14) for p in (*pills, *token_pills)
    ]
    return found + [Rect("arena", a.x, a.y, a.x + a.width, a.y + a.height) for a in arenas]


def test_nothing_overlaps(artifact: Artifact) -> None:
    columns, _ = place_columns(artifact)
    assert len(columns) == 3
    for column in columns:
        for one, other in combinations(rects(column), 2):
            assert not one.overlaps(other), f"{one} overlaps {other}"
        for rect in rects(column):
            assert column.x < rect.left and rect.right < column.x + column.width, f"{rect} leaves its column"
    for left, right in pairwise(columns):
        assert left.x + left.width < right.x


def test_text_fits_its_box(artifact: Artifact) -> None:
    for column in place_columns(artifact)[0]:
        for box in column.boxes.values():
            assert box.content.width <= box.width + 0.01, box.op.name
            assert box.content.height(box.width) <= box.height + 0.01, box.op.name
            for chip in box.content.placed_chips(box.width):
                assert chip.x >= 0 and chip.x + chip.width <= box.width, f"{chip} in {box.op.name}"


def test_no_line_crosses_a_box(artifact: Artifact) -> None:
    for column in place_columns(artifact)[0]:
        lines = [*value_lines(column)[0], *arena_lines(column)[0], *token_lines(column)[0]]
        assert lines
        for line in lines:
            numbers = [float(number) for number in re.findall(r"[\d.]+", line.path)]
            for (x1, y1), (x2, y2) in pairwise(zip(numbers[::2], numbers[1::2], strict=True)):
                piece = Rect(line.path, min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
                for name, box in column.boxes.items():
                    inside = Rect(name, box.x + 1, box.y + 1, box.right - 1, box.bottom - 1)
                    assert not piece.overlaps(inside), f"a {line.kind} crosses {name}"


def test_every_kind_of_op_is_shown(artifact: Artifact) -> None:
    root = ET.fromstring(draw_graphs(artifact))
    shown = {element.text for element in root.iter(f"{SVG}text")}
    for name in ("source", "decode", "prefill"):
        assert {op.kind for op in artifact.graph(name).ops} <= shown
    assert {"norm", "3×linear", "2×rope", "cache_write", "attention"} <= shown


def test_folded_layers_are_counted() -> None:
    assert draw_graphs(artifact_of("storyteller")).count("layers 0-5 (× 6)") == 3
    two_kinds = draw_graphs(artifact_of("two kinds of layers"))
    assert two_kinds.count("layers 0, 2, 4 (× 3)") == 3
    assert two_kinds.count("layers 1, 3 (× 2)") == 3


def test_arena_and_token_lines_have_their_own_style() -> None:
    root = ET.fromstring(draw_graphs(artifact_of("storyteller")))
    paths = [path.get("class") for group in root.findall(f"{SVG}g")[:3] for path in group.iter(f"{SVG}path")]
    assert paths.count("arena") == 2 + 1 + 2
    assert paths.count("token") == 0 + 2 + 3
    style = root.findtext(f"{SVG}style") or ""
    for kind in ("arena", "token"):
        assert re.search(rf"^\.{kind} {{.*stroke-dasharray", style, re.MULTILINE)


def test_names_are_escaped() -> None:
    spec = small_spec().model_copy(update={"name": 'a<b>&"c'})
    artifact = compiled(small_spec())
    odd = Artifact(artifact.files)
    vars(odd)["spec"] = spec
    root = ET.fromstring(draw_graphs(odd))
    assert root.findtext(f"{SVG}title") == 'a<b>&"c: the op graph before and after fusion'


@pytest.mark.long
def test_same_bytes_for_any_hash_seed() -> None:
    script = (
        "import hashlib, json; from mlxr.compiler.driver import compile_spec;"
        "from mlxr.compiler.spec.load import load_spec;"
        "from mlxr.compiler.spec.catalog import find_spec; from mlxr.inspect.picture.draw import draw_graphs;"
        "from mlxr.inspect.report_json import report_json;"
        "a = compile_spec(load_spec(find_spec('storyteller'))).artifact;"
        "print(hashlib.sha256((draw_graphs(a) + json.dumps(report_json(a))).encode()).hexdigest())"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
