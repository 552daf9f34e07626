"""The page's logic that touches no page, called in a browser."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxr.cli.agents import AGENTS, Served
from mlxr.server.page.page_files import page_files
from mlxr_tests.browser_tab import Tab, new_tab
from mlxr_tests.running_server import RunningServer


def call(tab: Tab, module: str, body: str, *values: Any) -> Any:
    """What a function's body returns; `m` is the module, `values` are the arguments."""
    path = f"/page/{page_files().digest}/js/{module}.js"
    return tab.page.evaluate(f"async ([path, values]) => {{ const m = await import(path); {body} }}", [path, [*values]])


@pytest.fixture(scope="module")
def tab(browser: Any, server: RunningServer) -> Iterator[Tab]:
    with new_tab(browser, server) as opened:
        opened.open()
        opened.page.locator(".welcome").wait_for()
        yield opened


def test_events_cut_anywhere(tab: Tab) -> None:
    text = ': alive\n\ndata: {"a": "é€😀"}\r\n\r\ndata:x\ndata: y\n\n: loading weights 5 %\n\n'
    text += "event: z\ndata: [DONE]\n\ndata: lost"
    body = """
        const results = [];
        const bytes = new TextEncoder().encode(values[0]);
        for (const size of [1, 2, 3, 7, 1000]) {
            const pieces = [];
            for (let at = 0; at < bytes.length; at += size) pieces.push(bytes.slice(at, at + size));
            const response = new Response(new ReadableStream({
                pull(stream) { if (pieces.length) stream.enqueue(pieces.shift()); else stream.close(); },
            }));
            const got = [];
            for await (const event of m.events(response)) got.push(event);
            results.push(got);
        }
        return results;
    """
    expected = [
        {"comment": "alive"},
        {"data": '{"a": "é€😀"}'},
        {"data": "x\ny"},
        {"comment": "loading weights 5 %"},
        {"data": "[DONE]"},
    ]
    assert call(tab, "event_stream", body, text) == [expected] * 5


def test_branches(tab: Tab) -> None:
    body = """
        const c = m.newConversation();
        const ask = m.add(c, "", {role: "user", content: "one"});
        const first = m.add(c, ask.id, {role: "assistant", content: "A"});
        m.add(c, first.id, {role: "user", content: "two"});
        const second = m.add(c, ask.id, {role: "assistant", content: "B"});
        const shown = () => m.path(c).map((message) => message.content).join(" ");
        const seen = [shown()];
        seen.push(m.turn(c, second.id, 1), m.turn(c, second.id, -1), shown());
        m.add(c, "", {role: "user", content: "other"});
        seen.push(shown(), m.pathTo(c, second.id).length, c.title, m.asText("S", m.pathTo(c, second.id)));
        return seen;
    """
    assert call(tab, "conversation", body) == ["one B", False, True, "one A two", "other", 2, "one", "SoneB"]


IMPORTED = {
    "id": "x",
    "title": "T",
    "messages": {"1": {"parent": "", "role": "user", "content": "q", "evil": 1}},
    "selected": {"": "1"},
    "settings": {"temperature": 0.5, "stop": 5, "top_k": "5", "other": 1, "deep": {}},
}
ROOT = {"parent": "", "role": "user"}
LOOP = {"1": {"parent": "2", "role": "user"}, "2": {"parent": "1", "role": "user"}}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "has no conversations"),
        ({"version": 2}, "has version 2"),
        ({"conversations": {}}, "is not a list"),
        ({"conversations": [{"messages": {}}]}, "conversations[0] has no messages or no selected"),
        ({"conversations": [IMPORTED | {"messages": {"1": {"parent": "", "role": "root"}}}]}, "no role that is known"),
        ({"conversations": [IMPORTED | {"messages": LOOP, "selected": {}}]}, "hangs below no message"),
        ({"conversations": [{"messages": {"": ROOT}, "selected": {"": ""}}]}, "cannot be the id of a message"),
        ({"conversations": [{"messages": {"__proto__": ROOT}, "selected": {"": "__proto__"}}]}, "cannot be the id"),
        ({"conversations": [IMPORTED | {"selected": {"": "2"}}]}, "is no message below that one"),
        ({"conversations": [IMPORTED]}, None),
    ],
)
def test_imports(tab: Tab, file: Any, message: str | None) -> None:
    head = {"format": "mlxr-conversations", "version": 1, "conversations": []}
    body = """
        try { return m.imported(values[0]); } catch (error) { return error.message; }
    """
    got = call(tab, "transfer", body, file if isinstance(file, str) else json.dumps(head | file))
    if message is not None:
        assert message in got
        return
    (conversation,) = got
    assert conversation["id"] != "x" and conversation["settings"] == {"temperature": 0.5}
    assert conversation["messages"]["1"] == {"id": "1", "parent": "", "role": "user", "content": "q", "created": 0}


def test_the_blocks_of_sequences(tab: Tab) -> None:
    whole = [{"first": 0, "blocks": [[0, 1], [4, 4]]}, {"first": 0, "blocks": [[0, 0], [2, 2]]}]
    windowed = [{"first": 1, "blocks": [[7, 7], [3, 3]]}, {"first": 0, "blocks": []}]
    slots = [[{"slot": 2, "tokens": 8}], [{"slot": 2, "tokens": 8}, {"slot": 0, "tokens": 9}]]
    arena = {"sequences": [{"id": 5 + i, "groups": [whole[i], windowed[i]], "slots": slots[i]} for i in range(2)]}
    body = """
        const owner = ({sequence, text}) => [sequence.id, text];
        const told = (whose) => [...whose].map(([cell, of]) => [cell, of.map(owner)]);
        return [told(m.owners(values[0], 0)), told(m.owners(values[0], 1)), told(m.slotOwners(values[0]))];
    """
    of_all, of_window, of_slots = call(tab, "inspector/arena_picture", body, arena)
    first, second = "its block 0", "its block 1"
    both = [[0, [[5, first], [6, first]]], [1, [[5, second]]]]
    assert of_all == [*both, [4, [[5, "its block 2"]]], [2, [[6, second]]]]
    assert of_window == [[7, [[5, second]]], [3, [[5, "its block 2"]]]]
    assert of_slots == [[2, [[5, "after 8 tokens"], [6, "after 8 tokens"]]], [0, [[6, "after 9 tokens"]]]]


def test_what_groups_are_called(tab: Tab) -> None:
    def group(layers: list[int], window: int | None) -> Any:
        return {"layers": layers, "window": window, "num_blocks": 64, "block_bytes": 2048 * bool(layers)}

    def texts(*groups: Any) -> Any:
        arena = {"mode": "paged", "block_size": 16, "groups": groups, "slots": None}
        body = "return values[0].groups.map((_, number) => Object.values(m.groupTexts(values[0], number)));"
        return call(tab, "inspector/arena_picture", body, arena)

    size = "64 blocks of 16 tokens, 2 KiB each"
    given_back = f"{size}; those that have left the window are given back"
    assert texts(group([0, 1], None)) == [["KV arena", f"{size}, paged"]]
    assert texts(group([1], None), group([0, 2, 3, 4], 128)) == [
        ["1 layer, all tokens", f"layer 1; {size}"],
        ["4 layers, a window of 128 tokens", f"layers 0, 2–4; {given_back}"],
    ]
    assert texts(group([], None), group([0, 1], 8)) == [
        ["No layers, all tokens", "64 blocks of 16 tokens, without memory: prefixes are found by them"],
        ["2 layers, a window of 8 tokens", f"layers 0–1; {given_back}"],
    ]


def test_sizes_of_cells(tab: Tab) -> None:
    body = "return [m.cellSize(1024, 1200, 220), m.cellSize(8, 1200, 220), m.cellSize(100000, 300, 200)];"
    size, most, least = call(tab, "inspector/cell_grid", body)
    assert (1200 // size) * (220 // size) >= 1024 > (1200 // (size + 0.5)) * (220 // (size + 0.5))
    assert (most, least) == (22, 2)


def test_formulas_are_found_and_prices_are_not(tab: Tab) -> None:
    text = r"""So \(a+b\), $E = mc^2$ and $$x$$; $5 and $10, $HOME/$PATH, \$3, `$c$`, $ 1 $.

\[
\frac{1}{2}
\]

- \(\sum_i i\)

```
\(code\)
```

\(\frac{a}\) \(\href{javascript:hit()}{x}\)"""
    body = """
        const node = document.createElement("div");
        new m.Markdown(node).show(values[0]);
        const found = [...node.querySelectorAll(".math")].map((part) => [part.textContent, part.className]);
        for (let i = 0; i < 200 && node.querySelectorAll(".katex, .math > code").length < found.length; i += 1)
            await new Promise((resolve) => setTimeout(resolve, 50));
        const source = (part) => (part.querySelector("annotation") ?? part).textContent;
        const shown = [...node.querySelectorAll(".math")].map(source);
        return [found, shown, node.querySelectorAll(".katex").length, node.querySelector("a"), node.innerText];
    """
    found, shown, drawn, link, plain = call(tab, "markdown", body, text)
    inline = ["a+b", "E = mc^2", r"\sum_i i", r"\frac{a}", r"\href{javascript:hit()}{x}"]
    assert [text for text, kind in found if kind == "math display"] == ["x", r"\frac{1}{2}"]
    assert [text for text, kind in found if kind == "math"] == inline
    assert shown == [text for text, _ in found] and drawn == len(found) - 1, "KaTeX shows all but the broken one"
    assert link is None and "$5 and $10, $HOME/$PATH, $3, $c$, $ 1 $." in plain
    assert r"\(code\)" in plain


def test_text_that_is_nested_too_deeply_is_shown_as_it_is(tab: Tab) -> None:
    body = """
        return values[0].map(([piece, count]) => {
            const node = document.createElement("div");
            const markdown = new m.Markdown(node), text = "before\\n\\n" + piece.repeat(count) + "x";
            markdown.show("before");
            markdown.show(text);
            return [node.textContent.includes("before"), node.textContent.trim().endsWith("x")];
        });
    """
    pieces = [["> ", 20000], ["- ", 20000], ["[", 20000], ["*_", 20000], ["> - ", 10000]]
    assert call(tab, "markdown", body, pieces) == [[True, True]] * len(pieces)


def test_searches_find_all_words_anywhere(tab: Tab) -> None:
    conversation = {
        "title": "Weather",
        "messages": {
            "1": {"content": "Rain in Bern?"},
            "2": {"content": "", "attachments": [{"name": "Log.txt", "text": "Snow"}]},
        },
    }
    body = "return values[1].map((text) => m.matches(values[0], text));"
    searches = ["", "bern weather", "SNOW log", "bern sun"]
    assert call(tab, "conversation_list", body, conversation, searches) == [True, True, True, False]


@pytest.mark.parametrize("key", [False, True])
def test_snippets_of_clients(tab: Tab, key: bool) -> None:
    served = {"url": "http://127.0.0.1:1", "model": "it's a/b", "context": 6000, "needsKey": key}
    texts = {one["name"]: one["text"] for one in call(tab, "snippets", "return m.snippets(values[0]);", served)}
    for name in ("Claude Code", "Codex", "aider", "curl"):
        words = shlex.split(texts[name], comments=False)  # a shell reads it
        assert any("it's a/b" in word for word in words), name
    assert ("$MLXR_API_KEY" in texts["curl"]) == key
    claude = dict(word.split("=", 1) for word in shlex.split(texts["Claude Code"]) if "=" in word)
    told = AGENTS["claude"].start(Served(served["url"], "none", served["model"], 6000), Path()).variables
    assert {name: told[name] for name in claude if name != "ANTHROPIC_AUTH_TOKEN"} == {
        name: value for name, value in claude.items() if name != "ANTHROPIC_AUTH_TOKEN"
    }, "as mlxr launch tells it"
    known = json.loads(next(word for word in shlex.split(texts["aider"]) if word.startswith("{")))
    start = AGENTS["aider"].start(Served(served["url"], "none", served["model"], 6000), Path())
    assert known == json.loads(start.files["models.json"])
    codex = [word for word in shlex.split(texts["Codex"]) if word.startswith("model")]
    launched = AGENTS["codex"].start(Served(served["url"], "none", served["model"], 6000), Path()).arguments
    assert [json.loads(word.split("=", 1)[1]) for word in codex][:4] == ["it's a/b", "mlxr", 6000, "MLXR"]
    assert {word.replace("=", "=", 1) for word in codex} <= {*launched}
