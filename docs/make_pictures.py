"""Makes pictures of the documentation: python docs/make_pictures.py, with playwright, Pillow and a Chromium.

`inspector.png` is a screenshot of the page of `mlxr serve storyteller`; `terminal.svg` is what `mlxr inspect` and
`mlxr run` print. `python docs/make_pictures.py mermaid.min.js` (of the npm package mermaid) makes `stages.svg` of the
diagram in ARCHITECTURE.md.
"""

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MLXR = [sys.executable, "-m", "mlxr.cli"]
PROMPT = "Once upon a time there lived"
PORT = 8613
_COLUMNS, _ROW, _CHARACTER = 118, 17, 7.83
"""Characters in a row; the height of a row and the width of a character, in pixels."""


def main() -> None:
    """Writes the diagram if its library is given, else the others."""
    if len(sys.argv) > 1:
        stages(Path(sys.argv[1]))
    else:
        terminal()
        inspector()


def diagram() -> str:
    """The text of the diagram."""
    found = re.search(r"```mermaid\n(.*?)```", (FOLDER / "ARCHITECTURE.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found, "there is no diagram in ARCHITECTURE.md"
    return found[1]


def stages(mermaid: Path) -> None:
    """Writes stages.svg; it begins with the hash of the diagram's text."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    options = "{startOnLoad: false, htmlLabels: false, flowchart: {htmlLabels: false}}"
    draw = f"text => {{ mermaid.initialize({options}); return mermaid.render('stages', text).then(it => it.svg); }}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.add_script_tag(path=mermaid)
        svg = page.evaluate(draw, diagram())
        browser.close()
    digest = hashlib.sha256(diagram().encode()).hexdigest()
    svg = svg.replace('style="', 'style="background: white; ', 1)  # on dark pages, too
    (FOLDER / "stages.svg").write_text(f"<!-- {digest} -->\n{svg}\n", encoding="utf-8")


def terminal() -> None:
    """Writes terminal.svg: two commands as they are typed, and what they print."""
    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder) / "storyteller"
        subprocess.run(
            [sys.executable, "-m", "mlxr.compiler.cli", "storyteller", "-o", artifact], check=True, cwd=folder
        )
        inspected = _printed(["inspect", str(artifact)])
        story = _printed(["run", "storyteller", PROMPT, "--max-tokens", "45", "--seed", "4"])
    rows = [f'$ mlxr run storyteller "{PROMPT}" --max-tokens 45 --seed 4', *_wrapped(story), ""]
    rows += ["$ mlxr inspect build/storyteller", *_shortened(inspected)]
    (FOLDER / "terminal.svg").write_text(_svg(rows), encoding="utf-8")


def _printed(arguments: list[str]) -> list[str]:
    environment = os.environ | {"COLUMNS": str(_COLUMNS)}
    run = subprocess.run([*MLXR, *arguments], stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return run.stdout.rstrip().split("\n")


def _wrapped(rows: list[str]) -> list[str]:
    """As a terminal wraps them."""
    return [row[at : at + _COLUMNS] for row in rows for at in range(0, max(len(row), 1), _COLUMNS)]


def _shortened(rows: list[str]) -> list[str]:
    """The first rows, as wide as the terminal, which scrolls no further."""
    return [row[:_COLUMNS] for row in rows[:24]]


def _svg(rows: list[str]) -> str:
    width, height = round(_COLUMNS * _CHARACTER) + 32, len(rows) * _ROW + 56
    texts = "\n".join(
        f'<text x="16" y="{46 + number * _ROW}"{_colour(row)} xml:space="preserve">{escape(row)}</text>'
        for number, row in enumerate(rows)
        if row
    )
    dots = "".join(
        f'<circle cx="{18 + 18 * number}" cy="16" r="5.5" fill="{colour}"/>'
        for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="13" '
        f'fill="#d6deeb">\n<rect width="{width}" height="{height}" rx="8" fill="#0d1420"/>\n{dots}\n{texts}\n</svg>\n'
    )


def _colour(row: str) -> str:
    return ' fill="#7fdbca"' if row.startswith("$") else ""


def inspector() -> None:
    """Writes inspector.png: the op graph of the bundled model, and an op that was clicked."""
    from PIL import Image  # noqa: PLC0415
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with _server() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        _show_an_op(page, url)
        shot = Image.open(io.BytesIO(page.screenshot()))
        browser.close()
    shot.convert("RGB").quantize(96, dither=Image.Dither.NONE).save(FOLDER / "inspector.png", optimize=True)


def _show_an_op(page: Any, url: str) -> None:
    page.goto(f"{url}/#/inspector/graph")
    page.get_by_role("button", name="Decode", exact=True).click()
    page.locator('.graph .node[aria-label^="Decode: rope_write_attention"]').first.click()
    side = page.get_by_role("complementary", name="The chosen op")
    source = side.get_by_text("C source").first
    source.click()
    side.locator(".highlight span[class]").first.wait_for()
    source.evaluate("element => element.closest('section').scrollIntoView({block: 'start'})")
    page.wait_for_timeout(500)


@contextmanager
def _server() -> Iterator[str]:
    """A server of the bundled model, which is loaded."""
    url = f"http://127.0.0.1:{PORT}"
    process = subprocess.Popen([*MLXR, "serve", "storyteller", "--port", str(PORT)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{url}/ready").close()
                break
            except OSError:
                time.sleep(0.1)
        load = urllib.request.Request(f"{url}/inspector/load?model=storyteller", method="POST")
        urllib.request.urlopen(load).close()
        yield url
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
