"""The snippets of a page of the documentation, and a folder in which they run as a reader would run them.

What a fenced block is follows from its language:

* `sh` runs in bash. Each command must end with 0, and one with the comment `# refused` must not. `mlxr serve` goes on
  in the background until the page's end.
* `python` runs in one session for the page, as a reader types it.
* `text` right after one of these is what it prints. `...` stands for anything. Other `text` is there to be read.
* `yaml` is a spec, or a part of one; it must compile. `json` must parse.
* With `title="NAME"` a block is a file of that name, which later blocks use.

Blocks of other languages are not run. Nor is one after a line `<!-- not run: WHY -->`, nor one after
`<!-- needs: MODULE -->` where there is no such module; `make test-clients` has those of other clients.
"""

import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import mlxr
from mlxr.compiler.spec.catalog import find_spec
from mlxr.compiler.spec.load import parse_spec
from mlxr_tests.changed_tree import ChangedTree
from mlxr_tests.storyteller import BF16, Q4_K_M, Q8_0, ROOT, TOKENIZER, VALID

_BLOCK = re.compile(
    r"^(?:<!-- (?:not run: (?P<why>[^\n]+)|needs: (?P<needs>\w+)) -->\n)?"
    r"```(?P<language>[\w-]*)(?P<rest>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_REFUSED = re.compile(r"^(.*\S) +# refused\b.*$", re.MULTILINE)
_TITLE = re.compile(r'title="([^"]+)"')
_TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
PORTS = ("8080", "8101", "8102")
"""The ports that pages name; each stands for a free one here."""

_SERVE = """#!/bin/bash
# mlxr, whose `serve` goes on in the background; it returns when the server listens.
if [ "$1" != serve ] || [[ " $* " == *" --detach "* ]]; then exec "$REAL_MLXR" "$@"; fi
[[ " $* " == *" --port "* ]] || set -- "$@" --port PORT
port="$(sed 's/.*--port \\([0-9]*\\).*/\\1/' <<<"$*")"
"$REAL_MLXR" "$@" >>serve.log 2>&1 </dev/null & echo $! >>serve.pids
for _ in {1..600}; do
  (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && exit 0
  kill -0 $! 2>/dev/null || break
  sleep 0.1
done
cat serve.log >&2; exit 1
"""


@dataclass(frozen=True)
class Snippet:
    """A fenced block.

    Attributes:
        line: of the page, where its text begins.
        language: `sh`, `python`, ...
        title: the file that it is; empty: none.
        text: what is in it.
        why_not: why it is not run; empty: it is.
        needs: the module without which it is not run; empty: none.
        is_output: whether it is what the block before prints.
    """

    line: int
    language: str
    title: str
    text: str
    why_not: str
    needs: str
    is_output: bool


def snippets(page: Path) -> list[Snippet]:
    """The blocks of a page, in their order."""
    text, found, end = page.read_text(encoding="utf-8"), list[Snippet](), 0
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("text")) + 1
        title = title[1] if (title := _TITLE.search(match["rest"])) else ""
        is_output = match["language"] == "text" and bool(found) and not text[end : match.start()].strip()
        why_not, needs = match["why"] or "", match["needs"] or ""
        found.append(Snippet(line, match["language"], title, match["text"], why_not, needs, is_output))
        end = match.end()
    return found


class Session:
    """A folder that is as a clone of the repository, whose package pages may change, and has what they name beside it.

    That is `model.gguf` and `folder`, models with a chat template; `valid.txt`; and `key`, a file with a key.
    """

    def __init__(self, folder: Path, page: Path) -> None:
        """Lays the folder out.

        Args:
            folder: an empty one, which becomes the working folder.
            page: whose snippets will run.
        """
        self.folder, self._names = folder, dict[str, Any](__name__="__main__")
        ChangedTree(folder)
        for path in (Q8_0, *map(ROOT.joinpath, ("tests", "benchmarks", "docs", "examples", "packaging"))):
            (folder / path.relative_to(ROOT)).symlink_to(path)
        if "./model.gguf" in page.read_text(encoding="utf-8"):
            _give_template(Q4_K_M, folder / "model.gguf")
        (folder / "valid.txt").write_text(VALID.read_text()[:4000])
        (folder / "folder").mkdir()
        for path in (BF16, BF16.with_name("config.json"), TOKENIZER):
            (folder / "folder" / path.name).symlink_to(path)
        (folder / "folder/chat_template.jinja").write_text(_TEMPLATE)
        (folder / "key").write_text("a-long-key-of-the-test\n")
        self._ports = {port: str(_free_port()) for port in PORTS}
        (folder / ".bin").mkdir()
        (folder / ".bin/mlxr").write_text(_SERVE.replace("PORT", self._ports["8080"]))
        (folder / ".bin/mlxr").chmod(0o755)
        self._environment = os.environ | {
            "COLUMNS": "110",
            "MLXR_DATA_DIR": str(folder / ".data"),
            "PATH": f"{folder / '.bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(folder / "src"),
            "REAL_MLXR": str(Path(sys.executable).with_name("mlxr")),
        }

    def run(self, snippet: Snippet) -> str:
        """Runs a snippet, or reads it, as its language says; returns what it printed."""
        text = re.sub("|".join(PORTS), lambda match: self._ports[match[0]], snippet.text)
        if snippet.title:
            path = self.folder / snippet.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif snippet.language == "sh":
            return self._shell(text)
        elif snippet.language == "python":
            return self._python(text, snippet.line)
        elif snippet.language == "yaml":
            _compile(text)
        elif snippet.language == "json":
            json.loads(text)
        return ""

    def _shell(self, text: str) -> str:
        text = _REFUSED.sub(r"! \1", text)
        run = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert run.returncode == 0, f"{text}\n{run.stdout}"
        return run.stdout

    def _python(self, text: str, line: int) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * (line - 1) + text, "page", "exec"), self._names)
        assert "print(" not in text or printed.getvalue().strip(), text
        return printed.getvalue()

    def close(self) -> None:
        """Ends the servers that its snippets started."""
        pids = self.folder / "serve.pids"
        for pid in pids.read_text().split() if pids.exists() else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGTERM)


@contextlib.contextmanager
def session(folder: Path, page: Path) -> Iterator[Session]:
    """A session for the time of a `with` block."""
    running = Session(folder, page)
    try:
        yield running
    finally:
        running.close()


def is_printed(told: str, printed: str) -> bool:
    """Whether a text is what was printed, where `...` stands for anything and spaces do not count."""
    words = (re.escape(" ".join(part.split())) for part in told.split("..."))
    return re.fullmatch(r"\s*" + r".*?".join(words) + r"\s*", " ".join(printed.split()), re.DOTALL) is not None


def _give_template(model: Path, to: Path) -> None:
    """Copies a GGUF file, with a chat template in the copy."""
    command = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--chat-template", _TEMPLATE, model, to]
    subprocess.run(command, capture_output=True, check=True)


def _compile(text: str) -> None:
    """A spec compiles; a part of one compiles in the place of that part of the bundled model's."""
    given = yaml.safe_load(textwrap.dedent(text))
    if "model" not in given:
        given = yaml.safe_load(Path(find_spec("storyteller")).read_text(encoding="utf-8")) | given
    mlxr.compile(parse_spec(yaml.safe_dump(given, sort_keys=False), "the page"))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
