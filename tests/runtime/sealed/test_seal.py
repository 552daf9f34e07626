"""A sealed process computes and opens nothing, whatever code runs in it."""

import platform
import sys
from pathlib import Path

import pytest

from mlxr.runtime.engine.constraint import grammar_worker
from mlxr.runtime.sealed.limited_process import LimitedProcess
from mlxr.runtime.tokenizer import template_worker

SCRIPT = """
import os, queue, socket, threading

IS_SEALED = {sealed}

def tried(action):
    try:
        action()
    except PermissionError:
        return "refused"
    return "done"

def answerer():
    asked, answered = queue.Queue(), queue.Queue()

    def answers():
        while True:
            answered.put(tried_all(asked.get()))

    threading.Thread(target=answers, daemon=True).start()

    def in_the_thread(question):
        asked.put(question)
        return answered.get()

    return in_the_thread if {in_thread} else tried_all

def tried_all(question):
    return {{
        "read": tried(lambda: open({path!r})),
        "write": tried(lambda: open({path!r} + "2", "w")),
        "list": tried(lambda: os.listdir({folder!r})),
        "socket": tried(socket.socket),
        "unix": tried(lambda: socket.socket(socket.AF_UNIX)),
        "process": tried(lambda: os.posix_spawn("/bin/true", ["true"], {{}})),
        "signal": tried(lambda: os.kill(os.getppid(), 0)),
        "delete": tried(lambda: os.unlink({path!r})),
        "memory": len(bytes(50_000_000)),
    }}
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="has no filter of system calls"
)
@pytest.mark.parametrize(("sealed", "in_thread"), [(True, False), (True, True), (False, False)])
def test_a_sealed_process_opens_nothing(tmp_path: Path, sealed: bool, in_thread: bool) -> None:
    """In no thread, those that were there before included."""
    path = tmp_path / "file"
    path.touch()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(sealed=sealed, in_thread=in_thread, path=str(path), folder=str(tmp_path)))
    process = LimitedProcess(script, memory_bytes=1 << 30, cpu_seconds=5)
    told = process.ask({}, 30)
    process.close()
    assert told.pop("memory") == 50_000_000
    assert set(told.values()) == {"refused" if sealed else "done"} and len(told) == 8
    assert path.exists() == sealed


def test_templates_run_sealed() -> None:
    """With what they import late: errors, and a filter that prints."""
    process = LimitedProcess(template_worker.__file__, memory_bytes=1 << 30, cpu_seconds=5)
    base = {"variables": {"x": {"b": 1}}, "most_characters": 100}
    for template, expected in (
        ("{{ x | pprint }}", {"text": "{'b': 1}"}),
        ("{{ strftime_now('%Y')[:2] }}", {"text": "20"}),
        ("a\n{{ x.y.z }}", {"error": "'dict object' has no attribute 'y'", "line": 2}),
        ("{{ raise_exception('no') }}", {"error": "it refuses this conversation: no", "line": 1}),
    ):
        assert process.ask(base | {"template": template}, 30) == expected
    process.close()
    assert template_worker.IS_SEALED


def test_grammars_are_tried_sealed() -> None:
    """With all that the library needs: what is right, wrong, and beyond its limits."""
    process = LimitedProcess(grammar_worker.__file__, memory_bytes=1 << 30, cpu_seconds=5)
    for grammar, expected in (
        ('start: "a" | /[a-z]+/', ""),
        ('start: %json {"type": "object", "properties": {"a": {"type": "string", "format": "date"}}}', ""),
        ("start: b", "unknown name"),
        (f'start: "{"a" * 20_000}"', "all texts begin with the same"),
    ):
        error = process.ask({"grammar": grammar, "limits": {}}, 30)["error"]
        assert expected in error and bool(error) == bool(expected), (grammar[:100], error)
    process.close()
    assert grammar_worker.IS_SEALED
