"""The page shows and changes the model's own sampling, and has models fetched."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.registry_catalog import RegistryCatalog
from mlxr.server.settings import ServerSettings
from mlxr_tests.browser_tab import Tab, new_tab
from mlxr_tests.running_server import RunningServer, running_server, tiny_source
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


@pytest.mark.long
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
        page.locator("#model option", has_text="tiny (embeddings)").wait_for(state="attached")
        page.locator("#model").select_option("tiny (embeddings)")
        page.get_by_role("link", name="Chat").click()
        page.wait_for_function("document.querySelector('#model').value === 'tiny'")


@pytest.mark.long
def test_the_models_dialog_loads_unloads_and_tells_how_to_ask(browser: Any, server: RunningServer) -> None:
    with new_tab(browser, server) as tab:
        page = tab.open()
        page.locator("#model").select_option("tiny")
        page.get_by_role("button", name="Model and clients").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_text(f"{TINY.stat().st_size / (1 << 20):.3g} MiB").wait_for()  # of its file
        assert {"Q8_0, gguf", "chat: it has a chat template"} <= set(dialog.locator("dd").all_inner_texts())
        if dialog.get_by_role("button", name="Load", exact=True).count():
            dialog.get_by_role("button", name="Load", exact=True).click()
        dialog.get_by_role("button", name="Unload").click(timeout=60_000)
        dialog.get_by_role("button", name="Load", exact=True).wait_for()
        assert server.http.get("/inspector/models").json()[0]["state"] == "cold"
        dialog.get_by_role("button", name="Load", exact=True).click()
        dialog.get_by_text("512 tokens", exact=True).wait_for(timeout=60_000)
        dialog.get_by_label("Client").select_option("Python (openai)")
        source = dialog.locator("pre").inner_text()
    done = subprocess.run([sys.executable, "-c", source], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.long
def test_files_go_with_a_message(tab: Tab) -> None:
    page, bodies = tab.open(), list[dict[str, Any]]()
    page.on("request", lambda told: bodies.append(told.post_data_json) if told.url.endswith("completions") else None)
    page.locator("#model").select_option("tiny")
    page.get_by_label("max tokens").fill("2")
    files = page.get_by_label("Files to attach")
    picture = {"name": "p.png", "mimeType": "image/png", "buffer": b"\x89PNG\r\n\x1a\n\x00\x00"}
    notes = {"name": "n.txt", "mimeType": "", "buffer": "Größe <b>".encode("utf-16")}
    files.set_input_files([picture, notes, {"name": "d.pdf", "mimeType": "", "buffer": small_pdf("From a PDF")}])
    page.get_by_text("p.png is neither text nor a PDF").wait_for()
    page.locator(".attachments li").nth(1).wait_for()
    page.get_by_label("Message", exact=True).fill("What is this?")
    page.keyboard.press("Enter")
    page.locator(".message.assistant:not(.growing) .foot").first.wait_for()
    (message,) = bodies[0]["messages"]
    ends = "File n.txt:\n\nGröße <b>\n\n(end of n.txt)", "File d.pdf:\n\nFrom a PDF\n\n(end of d.pdf)"
    assert message["content"] == "\n\n".join([*ends, "What is this?"])
    assert page.locator(".attachments li").count() == 0
    page.locator(".message.user summary", has_text="d.pdf").click()
    assert page.locator(".message.user .plain", has_text="From a PDF").is_visible()
    page.get_by_role("button", name="New conversation").click()
    page.get_by_label("Message", exact=True).fill("Another")
    page.keyboard.press("Enter")
    page.locator(".message.assistant:not(.growing) .foot").first.wait_for()
    items = page.locator(".conversations li")
    assert items.count() == 2
    page.get_by_label("Search in conversations").fill("größe")
    assert items.count() == 1 and "What is this?" in items.inner_text()


def small_pdf(text: str) -> bytes:
    """A PDF of one page, by hand."""
    stream = f"BT /F1 24 Tf 72 700 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        b" /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out, offsets = b"%PDF-1.4\n", list[int]()
    for number, content in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    return out + b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (
        size,
        table,
        size,
        len(out),
    )
