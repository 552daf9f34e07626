"""The page shows and changes the model's own sampling, and has models fetched."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.registry_catalog import RegistryCatalog
from mlxr.server.settings import ServerSettings
from mlxr_tests.browser_tab import Tab, new_tab
from mlxr_tests.running_server import running_server, tiny_source
from mlxr_tests.stand_in_hub import StandInHub, the_hub
from mlxr_tests.storyteller import TINY


def test_sampling_is_the_models_own_until_it_is_changed(tab: Tab) -> None:
    page = tab.open()
    page.get_by_label("Model", exact=True).select_option("plain")
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda asked: bodies.append(json.loads(asked.post_data)) if "/v1/" in asked.url else None)

    def ask(number: int) -> dict[str, Any]:
        page.get_by_label("max tokens").fill("2")
        page.get_by_label("Message", exact=True).fill("Once")
        page.keyboard.press("Enter")
        page.locator(".message.assistant:not(.growing) .foot").nth(number).wait_for()
        return bodies[-1]

    assert not {"temperature", "top_k", "top_p", "min_p"} & ask(0).keys()
    assert not page.get_by_label("top k").is_visible(), "it is folded"
    page.locator("#settings summary", has_text="More sampling").click()
    shown = {name: page.get_by_label(name).input_value() for name in ("temperature", "top k", "top p")}
    assert shown == {"temperature": "0.8", "top k": "40", "top p": "0.95"}
    assert page.get_by_label("repetition penalty").get_attribute("placeholder") == "off"
    assert page.get_by_text("Grey: MLXR's, the model's files name none.").is_visible()
    page.get_by_label("top k").fill("0")
    page.get_by_label("temperature").fill("0.5")
    asked = ask(1)
    assert (asked["top_k"], asked["temperature"]) == (0, 0.5) and "top_p" not in asked
    assert page.get_by_label("Preset").input_value() == ""
    page.once("dialog", lambda dialog: dialog.accept("mine"))
    page.get_by_role("button", name="Save as a preset").click()
    page.get_by_label("Preset").select_option("The model's own")
    page.locator("#settings summary", has_text="More sampling").click()
    assert page.get_by_label("top k").input_value() == "40"
    assert not {"temperature", "top_k"} & ask(2).keys()
    page.reload()
    page.get_by_label("Preset").select_option("mine")
    assert page.get_by_label("temperature").input_value() == "0.5"
    assert page.get_by_label("top k").input_value() == "0"
    page.get_by_role("button", name="Delete this preset").click()
    assert "mine" not in page.get_by_label("Preset").locator("option").all_inner_texts()


def test_a_model_is_fetched_with_progress(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = StandInHub({"org/tiny": {"tiny-Q8_0.gguf": TINY.read_bytes()}})

    def pool() -> ModelPool:
        return ModelPool([tiny_source()], catalog=RegistryCatalog(tiny_source(""), only=set()))

    with (
        the_hub(hub, tmp_path, monkeypatch),
        running_server(pool, ServerSettings(allow_pull=True)) as server,
        new_tab(browser, server) as tab,
    ):
        page = tab.open()
        page.get_by_role("button", name="Get a model").click()
        page.locator("#pull-name").fill("org/absent")
        page.get_by_role("button", name="Get it").click()
        page.get_by_text("has no model org/absent").wait_for()
        page.locator("#pull-name").fill("hf.co/org/tiny")
        page.keyboard.press("Enter")
        page.locator("#pull-dialog").wait_for(state="hidden")
        assert page.locator("#model").input_value() == "org/tiny"


def test_without_the_option_there_is_no_button(tab: Tab) -> None:
    page = tab.open()
    page.get_by_label("Message", exact=True).wait_for()
    assert page.get_by_role("button", name="Get a model").count() == 0


@pytest.mark.long
def test_what_a_model_is_for_is_known_before_it_is_loaded(browser: Any) -> None:
    with (
        running_server(lambda: ModelPool([tiny_source(), tiny_source("other")])) as server,
        new_tab(browser, server) as tab,
    ):
        server.http.post("/v1/embeddings", json={"model": "tiny", "input": "A"}).raise_for_status()
        page = tab.open()
        page.locator(
            ".welcome button", has_text="Once upon a time"
        ).wait_for()  # no model that continues texts is asked
        assert page.get_by_label("Message", exact=True).get_attribute("placeholder").startswith("Begin a text")
        names = page.locator("#model option")
        assert names.all_inner_texts() == ["tiny", "other"], "the form that gives embeddings cannot chat"
        assert server.http.get("/inspector/models").json()[0]["state"] == "cold", "looking loads nothing"
        page.get_by_role("link", name="Inspector").click()
        assert "tiny (embeddings)" in names.all_inner_texts()
        page.locator("#model").select_option("tiny (embeddings)")
        page.get_by_role("link", name="Chat").click()
        assert page.locator("#model").input_value() == "tiny"
