"""Each program in examples/ runs as a reader runs it, and prints what it is about."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from mlxr_tests.serve_process import serve_process
from mlxr_tests.storyteller import ANSWER, ROOT

pytestmark = pytest.mark.long
EXAMPLES = ROOT / "examples"
KV_MIB = 2 * 12 * 4 * 64 * 2 * 1024 / 2**20
"""The cache of own_spec.py for 1,024 tokens: K and V, layers, KV heads, their size, bytes."""


def printed(name: str, **variables: str) -> str:
    run = subprocess.run(
        [sys.executable, f"examples/{name}.py"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")} | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("generate", rf"{ANSWER}\n.+\n\[(length|stop) after \d+ tokens\]\n"),
        ("chat", r"> Who lives.*?\n.+\n> And what.*?\n.+\n\[4 messages\]\n"),
        ("many_requests", r"(.+\n){8}\[cached tokens: 0 for the first one, (6[4-9]|[7-9]\d) or more .*\]\n"),
        ("embeddings", r"0\.\d+  The ship sailed.*\n(0\.\d+  .*\n){2}"),
        ("log_probabilities", r"' man': 'man' \d+%, .*\n' who': 'who' \d+%.*\n' had': 'had' .*\n' a': 'a' .*\n"),
        ("inspect_plan", r"metal: .*\n(.*\n)* +6 x attend\n(.*\n)*cpu: .*\n(.*\n)* +6 x attend_decode\n(.*\n)*"),
        ("own_spec", "".join(rf"context {1024 * n}: cache {KV_MIB * n:.0f} MiB of .*\n" for n in (1, 2, 4, 8))),
        ("compare_formats", r"16 tokens; greatest difference .*: \d\.\d+\nthe same .* after (100|[7-9]\d)% of them\n"),
    ],
)
def test_an_example(name: str, expected: str) -> None:
    text = printed(name)
    assert re.fullmatch(expected, text, re.DOTALL if name in ("generate", "chat", "many_requests") else 0), text


def test_json_answer() -> None:
    schema = re.search(r"^SCHEMA = (\{.*?^\})$", (EXAMPLES / "json_answer.py").read_text(), re.DOTALL | re.MULTILINE)
    assert schema
    jsonschema.validate(json.loads(printed("json_answer")), eval(schema[1]))


def test_openai_client(tmp_path: Path) -> None:
    with serve_process(tmp_path, model="tales=storyteller") as server:
        text = printed("openai_client", OPENAI_BASE_URL=f"{server.url}/v1")
    assert re.fullmatch(r".+\n\[\d+ tokens in, [1-9]\d* out\]\n", text, re.DOTALL), text


def test_the_list_names_all() -> None:
    listed = re.findall(r"^\| \[(\w+)\.py\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in EXAMPLES.glob("*.py"))
    assert len(listed) == 10
