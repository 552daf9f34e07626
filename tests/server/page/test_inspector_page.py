"""The inspector in a browser: it shows what the inspector's routes tell."""

import re
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mlxr.runtime.engine.arena_state import arena_state
from mlxr.server.inspector.arena_view import view_of
from mlxr.server.pool.model_pool import ModelPool
from mlxr_tests.browser_tab import Tab, new_tab
from mlxr_tests.hash_host import HashEngine
from mlxr_tests.running_server import RunningServer, running_server, tiny_source


@pytest.fixture(scope="module")
def models() -> Iterator[RunningServer]:
    with running_server(lambda: ModelPool([tiny_source("a"), tiny_source("b", max_sequences=2)])) as running:
        yield running


@pytest.fixture
def opened(browser: Any, models: RunningServer) -> Iterator[Tab]:
    with new_tab(browser, models) as tab:
        yield tab


def get(server: RunningServer, path: str, **query: str) -> Any:
    return server.http.get(f"/inspector/{path}", params=query).raise_for_status().json()


def told_bytes(launches: list[Any]) -> str:
    """The bytes of some launches as the page writes them, below a MiB."""
    return f"{sum(launch['size_bytes'] or 0 for launch in launches) / 1024:.3g} KiB"


def load(server: RunningServer, name: str) -> None:
    server.http.post("/inspector/load", params={"model": name}).raise_for_status()


@pytest.mark.long
def test_a_model_that_is_not_loaded(opened: Tab) -> None:
    page = opened.open("/#/inspector")
    opened.server.do(lambda: opened.server.pool.unload("b"))
    page.get_by_label("Model", exact=True).select_option("b")
    page.get_by_role("button", name="Load b").click()
    page.locator(".graph-decode .node").first.wait_for(timeout=60_000)
    assert get(opened.server, "models")[1]["state"] == "loaded"


@pytest.mark.long
def test_graphs_ops_and_kernels(opened: Tab) -> None:
    load(opened.server, "a")
    page = opened.open("/#/inspector/graph")
    page.locator(".graph-decode .node").first.wait_for()
    assert not page.locator(".graph-source .node").first.is_visible(), "one graph at first"
    smallest = """() => Math.min(...[...document.querySelectorAll('.graph-decode text')].map((text) =>
        parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a))"""
    assert page.evaluate(smallest) > 9, "it can be read"
    assert page.locator(".key").get_by_text("reads or writes the KV arena").is_visible()
    graphs = get(opened.server, "graphs", model="a")["graphs"]
    assert page.locator(".graph .node").count() == sum(len(graph["nodes"]) for graph in graphs)
    assert page.locator(".stage .edge").count() == sum(len(graph["edges"]) for graph in graphs)

    decode = graphs[1]["nodes"]
    fused = max(decode, key=lambda node: len(node["parts"]))
    shape = page.locator(f'.graph .node[aria-label^="Decode: {fused["kind"]} {fused["label"]}"]').first
    page.get_by_role("button", name="Fit", exact=True).click()
    shape.click()
    side = page.get_by_role("complementary", name="The chosen op")
    op = get(opened.server, "op", model="a", graph="decode", name=fused["id"], chip="m4-max")
    side.get_by_role("heading", name=fused["id"], exact=True).wait_for()
    here = [launch for launch in op["launches"] if launch["target"] == "cpu"]
    assert side.locator(".work").inner_text().split("\n")[:2] == ["Bytes moved", told_bytes(here)]
    assert all(not launch["measured"] for launch in here)
    side.get_by_role("button", name="Measure the calls on this machine").click()
    side.locator(".work").get_by_text("Measured").wait_for(timeout=60_000)
    again = get(opened.server, "op", model="a", graph="decode", name=fused["id"])["launches"]
    (time,) = next(launch["measured"] for launch in again if launch["target"] == "cpu")
    assert time["host"] == "cpu" and time["time_us"] > 0 and "1 sequence of" in time["scenario"]
    assert f"Measured, {time['scenario']}" in side.inner_text()
    assert "cpu, which runs here" in side.locator(".launch h3").first.inner_text()
    for fold in ("default", "target metal, which does not run here"):
        assert side.locator("details", has_text=fold).count() > 0
    related = page.locator('.graph [aria-label^="Source"] .node.related').count()
    assert related == len({part["id"] for part in fused["parts"]}) > 1
    side.get_by_label("Predict times for").select_option("m4-max")
    side.locator(".prediction").first.wait_for()
    assert side.locator(".launch").count() == len(op["launches"])
    assert side.locator(".prediction").count() == sum(launch["prediction"] is not None for launch in op["launches"])
    for target, language in (("metal", "Metal"), ("cpu", "C")):
        launch = next(launch for launch in op["launches"] if launch["target"] == target)
        section = side.get_by_role("region", name=f"Launch {launch['kernel']}", exact=True)
        section.get_by_text(f"{language} source").click()
        source = section.get_by_role("region", name=f"Source of {launch['kernel']}")
        source.locator(".highlight span[class]").first.wait_for()
        kernel = get(opened.server, "kernel", model="a", target=target, name=launch["kernel"])
        assert source.inner_text().strip() == kernel["source"].strip()
    side.get_by_role("button", name=fused["parts"][0]["id"], exact=True).click()
    page.locator('.graph [aria-label^="Source"] .node[aria-pressed="true"]').wait_for()


@pytest.mark.long
def test_the_graph_moves_and_fits(opened: Tab) -> None:
    load(opened.server, "a")
    page = opened.open("/#/inspector/graph")
    side, shape = page.get_by_role("complementary", name="The chosen op"), page.locator(".graph-decode .node").nth(1)
    shape.wait_for()
    place, moved = shape.bounding_box(), 60
    page.mouse.move(place["x"] + 9, place["y"] + 9)
    page.mouse.down()
    page.mouse.move(place["x"] + 9 + moved, place["y"] + 9 + moved, steps=3)
    page.mouse.up()
    panned = shape.bounding_box()
    assert [panned[axis] - place[axis] for axis in "xy"] == pytest.approx(
        [moved, moved], abs=1
    )  # hovering makes the frame thicker
    assert not side.is_visible(), "this was no click"
    page.mouse.wheel(0, 30)
    assert shape.bounding_box()["y"] == pytest.approx(panned["y"] - 30, abs=1)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -50)
    page.keyboard.up("Control")
    assert shape.bounding_box()["width"] > 1.2 * panned["width"]
    page.get_by_role("button", name="Fit", exact=True).click()
    stage, column = (page.locator(name).bounding_box() for name in (".stage", ".graph-decode .column"))
    assert column["y"] >= stage["y"] and column["height"] <= stage["height"]


@pytest.mark.long
def test_the_graph_on_a_phone(browser: Any, models: RunningServer) -> None:
    load(models, "a")
    with new_tab(browser, models, viewport={"width": 390, "height": 800}) as tab:
        page = tab.open("/#/inspector/graph")
        page.locator(".graph-decode .node").first.wait_for()
        assert page.locator(".stage").bounding_box()["height"] > 400 and not page.locator(".graph-source").is_visible()
        rows = {round(button.bounding_box()["y"]) for button in page.locator(".graph-tools button").all()}
        assert len(rows) == 1, "no button goes to a line of its own"
        page.locator(".graph-decode .node").nth(1).click()
        page.locator(".work").wait_for()
        table = page.locator("aside.op .wide").first
        assert table.evaluate("node => getComputedStyle(node).overflowX") == "auto"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.long
def test_the_graph_by_keyboard(opened: Tab) -> None:
    load(opened.server, "a")
    page = opened.open("/#/inspector/graph")
    page.locator('.graph .node[tabindex="0"]').focus()
    focused = "document.activeElement.getAttribute('aria-label')"
    first = page.evaluate(focused)
    page.keyboard.press("ArrowDown")
    second = page.evaluate(focused)
    assert first != second and page.locator('.graph .node[tabindex="0"]').count() == 1
    page.keyboard.press("ArrowUp")
    assert page.evaluate(focused) == first
    assert first.startswith("Decode")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focused).startswith("Source") and not page.locator(".graph-decode .node").first.is_visible()
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused).startswith("Decode")
    before = page.locator(".graph > g").get_attribute("transform")
    page.keyboard.press("+")
    assert page.locator(".graph > g").get_attribute("transform") != before
    page.keyboard.press("Enter")
    page.get_by_role("complementary", name="The chosen op").get_by_role("heading").first.wait_for()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "The chosen op"
    page.keyboard.press("Escape")
    assert page.evaluate(focused).startswith("Decode"), "the focus comes back"


@pytest.mark.long
def test_live(opened: Tab) -> None:
    load(opened.server, "a")
    body = {"model": "a", "prompt": "Once upon a time", "max_tokens": 100, "ignore_eos": True}
    opened.server.http.post("/v1/completions", json=body).raise_for_status()
    page = opened.open("/#/inspector/live")
    page.get_by_label("Charts show").select_option("since the model was loaded")
    page.get_by_text(re.compile("from .* ago to now")).wait_for()
    middle = """() => { const canvas = document.querySelector('.chart canvas');
        return canvas.getContext('2d').getImageData(0, 30, canvas.width, 60).data.some((value) => value); }"""
    page.wait_for_function(middle)  # a line goes through it: the answer came before the page looked
    arena = page.get_by_role("img", name="KV arena")
    arena.wait_for()
    has_shown = threading.Event()

    def ask() -> None:
        body = {"model": "a", "prompt": "Once upon a time", "max_tokens": 100, "ignore_eos": True, "n": 4}
        while not has_shown.wait(0.05):
            opened.server.http.post("/v1/completions", json=body).raise_for_status()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        page.wait_for_function(
            "() => /of answers [1-9]\\S* now, [1-9]\\S* over/.test(document.querySelector('.charts').innerText)"
        )
        page.wait_for_function("() => /running [1-4]/.test(document.querySelector('.charts').innerText)")
        page.get_by_role("table").get_by_role("row").nth(1).wait_for()
    finally:
        has_shown.set()
        asking.join()
    arena.focus()
    page.keyboard.press("ArrowRight")
    page.get_by_text("Block 0:").wait_for()
    named = page.locator("canvas").evaluate_all("all => all.map(canvas => canvas.getAttribute('aria-label'))")
    assert len(named) == 6 and all(named)


@pytest.mark.long
def test_requests_and_where_their_time_went(opened: Tab) -> None:
    load(opened.server, "a")
    body = {"model": "a", "prompt": "Once upon a time", "max_tokens": 30, "ignore_eos": True}
    name = opened.server.http.post("/v1/completions", json=body).headers["x-request-id"]
    page = opened.open("/#/inspector/requests")
    page.get_by_role("button", name=name).click()
    chosen = page.get_by_role("region", name="The chosen request")
    chosen.get_by_text("The prefix cache lacked", exact=False).wait_for()
    told = opened.server.http.get(f"/requests/{name}").json()
    chosen.get_by_text(f"most of it {told['why']}", exact=False).wait_for()
    causes = chosen.get_by_role("table").first.get_by_role("row").all_inner_texts()
    assert [row.split()[0] for row in causes[1:]] == list(told["spent_ms"])
    chosen.get_by_text("None was timed", exact=False).wait_for()


@pytest.mark.long
def test_groups_of_layers_and_slots_of_states(opened: Tab) -> None:
    """The arena of a model with a window and states, in place of the tiny model's."""
    load(opened.server, "a")
    engine = HashEngine(num_blocks=128, block_size=4, context=400, window=8, state_slots=20)
    engine.add([1 + i % 7 for i in range(320)], max_tokens=40)
    while engine.pager.num_sequences == 0 or engine.pager.length(0) < 320:
        engine.core.step()
    model: Any = SimpleNamespace(pager=engine.pager, core=engine.core, host=engine.host, arena=engine.host.arena)
    told = view_of(arena_state(model))
    opened.page.route("**/inspector/arena?*", lambda route: route.fulfill(json=told.model_dump(mode="json")))
    page = opened.open("/#/inspector/live")
    assert told.slots is not None
    whole, windowed = told.groups
    for title, used, count in (
        ("1 layer, all tokens", whole.used, "128 blocks"),
        ("1 layer, a window of 8 tokens", windowed.used, f"{windowed.num_blocks} blocks"),
        ("States of sequences", told.slots.used, "20 slots"),
    ):
        page.get_by_role("heading", name=title, exact=True).wait_for()
        page.get_by_role("img", name=f"{title}: {used} of {count} in use", exact=False).wait_for()
    page.get_by_text("those that have left the window are given back").wait_for()
    (sequence,) = told.sequences
    (first, _), *_ = sequence.groups[1].blocks
    grid = page.get_by_role("img", name="1 layer, a window of 8 tokens")
    grid.focus()
    page.keyboard.press("ArrowRight")
    for _ in range(first):
        page.keyboard.press("ArrowRight")
    whose = f"of request {sequence.request}, its block {sequence.groups[1].first}"
    page.get_by_text(f"Block {first}: in use, {whose}").wait_for()
    page.get_by_role("img", name="States of sequences").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_text(re.compile("Slot 0: (in use|cached|free)")).wait_for()
    heads = page.get_by_role("table").get_by_role("columnheader").all_inner_texts()
    assert heads[3:] == ["blocks, all tokens", "blocks, a window of 8 tokens", "state slots"]


@pytest.mark.long
def test_comparing(opened: Tab) -> None:
    load(opened.server, "a")
    page = opened.open("/#/inspector/compare")
    page.get_by_label("B", exact=True).select_option("b")
    page.get_by_role("button", name="Compare", exact=True).click()
    row = page.get_by_role("row", name="cache.max_sequences 4 2")
    row.wait_for()
    page.get_by_label("B", exact=True).select_option("a")
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_text("byte for byte").wait_for()
