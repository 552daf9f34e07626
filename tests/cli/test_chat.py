"""`mlxr chat` as a user meets it: piped lines, a terminal, commands, Ctrl-C."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from mlxr.cli import main
from mlxr_tests.storyteller import ANSWER, BF16, PROMPT, Q8_0, TINY

PLAIN = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """A template that joins the messages."""
    path = tmp_path / "plain.jinja"
    path.write_text(PLAIN)
    return path


def chat(template: Path, *extra: str) -> list[str]:
    options = ["--host", "cpu", "--temperature", "0", "--template", str(template)]
    return ["chat", "storyteller", *options, *extra]


def test_each_line_of_standard_input_is_a_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, template: Path
) -> None:
    lines = f"{PROMPT}\n\n  and then  \n/clear\n{PROMPT}\n/exit\nnever read\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert main(chat(template, "--max-tokens", "4", "--stats")) == 0
    shown = capsys.readouterr()
    answers = shown.out.splitlines()
    assert len(answers) == 3
    assert answers[0] == answers[2] == ANSWER
    read = [line for line in shown.err.splitlines() if "tokens read" in line]
    assert read[0].startswith("5 tokens read, 0 reused, 4 written in ")
    assert " reused" in read[1]
    assert int(read[1].split()[3]) >= 7
    assert read[2].startswith("1 tokens read, 4 reused"), "after /clear the blocks are still known"


LONG = "One day the king went out to the hill and saw that all the birds were gone from the trees. "


def test_a_conversation_beyond_the_context_names_the_ways_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, template: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{LONG}\n{LONG}\n"))
    assert main(chat(template, "--context", "40", "--max-tokens", "4")) == 1
    shown = capsys.readouterr().err
    assert re.search(r"the conversation has 4\d tokens with this message; the context is 40", shown)
    assert "(--context N)" in shown and "Python" not in shown
    assert "--drop-oldest makes room by itself" in shown


def test_old_turns_are_dropped_on_request_and_never_silently(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, template: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"Once upon a time\n{LONG}\n/drop\n{LONG}\n"))
    options = ["--context", "40", "--max-tokens", "4", "--drop-oldest", "--stats"]
    assert main(chat(template, *options)) == 0
    shown = capsys.readouterr().err.splitlines()
    assert len([line for line in shown if "tokens read" in line]) == 3
    notes = [line for line in shown if line.startswith("note: ")]
    assert notes == ["note: forgot the oldest turn of 2", "note: forgot the oldest turn of 1"]


def test_a_pipe_ends_at_an_unknown_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, template: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("/drop\nOnce upon a time\n/usr/bin is a folder\n/fly\nnever read\n"))
    assert main(chat(template, "--max-tokens", "4")) == 1
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2, "a message with a slash is a message"
    assert shown.err.splitlines()[0] == "note: nothing to forget"
    assert "unknown command /fly: /clear starts over, /drop forgets the oldest turn" in shown.err


def test_an_answer_cut_by_the_context_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, template: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Once upon a time\n"))
    assert main(chat(template, "--context", "16", "--max-tokens", "16")) == 0
    assert "note: the answer ends here because the context is full" in capsys.readouterr().err
    arguments = ["run", "storyteller", "--host", "reference", "--prompt", "Once upon a time", "--context", "16"]
    assert main(arguments) == 0
    assert "note: the answer ends here because the context of 16 tokens is full" in capsys.readouterr().err
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["finish_reason"] == "context"


def test_an_answer_leaves_room_for_the_conversation_in_a_small_context(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, template: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{PROMPT}\nAnd then he\n"))
    assert main(chat(template, "--context", "48", "--stats")) == 0
    shown = capsys.readouterr().err
    assert len(re.findall(r" reused, 12 written in ", shown)) == 2, "a quarter each, so that a second turn fits"
    assert "note: the answer ends here after 12 tokens, a quarter of the context; --max-tokens N allows more" in shown


def test_what_people_type_and_drop_into_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, template: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(b"")
    lines = f"/help\n/?\nWhat is in {picture}\nWhat is in absent.png\n/bye\nnever read\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert main(chat(template, "--max-tokens", "1")) == 0
    shown = capsys.readouterr()
    assert shown.err.count("/clear starts over, /drop forgets the oldest turn, /exit or Ctrl-D leaves") == 2
    notes = [line for line in shown.err.splitlines() if line.startswith("note: ")]
    assert notes == [f"note: mlxr chat takes no pictures; the model reads the words {picture}"]
    assert len(shown.out.splitlines()) == 2


def test_the_system_message_reaches_the_template(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, template: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n"))
    assert main(chat(template, "--max-tokens", "4", "--system", PROMPT.removesuffix("a"))) == 0
    assert capsys.readouterr().out == f"{ANSWER}\n"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--max-tokens", "0"], "--max-tokens is 0; expected at least 1"),
        (["--temperature", "-1"], "--temperature is -1.0"),
        (["--template", "missing.jinja"], "missing.jinja: cannot be read"),
    ],
)
def test_faulty_input_gives_a_message_and_1(
    capsys: pytest.CaptureFixture[str], template: Path, extra: list[str], message: str
) -> None:
    assert main(chat(template, *extra)) == 1
    assert message in capsys.readouterr().err


def test_without_a_template_it_says_how_to_give_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", str(TINY), "--host", "reference"]) == 1
    assert "comes without a chat template" in (shown := capsys.readouterr().err)
    assert "--template FILE" in shown


def test_a_message_that_cannot_be_answered_ends_a_pipe_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("{{ raise_exception('no') }}")
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\nb\n"))
    assert main(chat(path)) == 1
    assert "t.jinja, line 1: it refuses this conversation: no" in capsys.readouterr().err


def test_a_hugging_face_folder_brings_its_template(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.model").symlink_to(Q8_0.parent / "tokenizer.model")
    for path in (BF16, BF16.with_name("config.json")):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "chat_template.jinja").write_text(PLAIN)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{PROMPT}\n"))
    options = ["--host", "reference", "--temperature", "0", "--max-tokens", "4"]
    assert main(["chat", str(tmp_path), *options]) == 0
    assert capsys.readouterr().out == f"{ANSWER}\n"


class Terminal:
    """The command on a pseudo-terminal."""

    def __init__(self, arguments: list[str]) -> None:
        self._ours, theirs = pty.openpty()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "dumb"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlxr.cli", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """What was shown up to `text`, which is taken away."""
        end = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < end, f"{text!r} did not come: {self.shown!r}"
            if select.select([self._ours], [], [], 0.2)[0]:
                try:
                    self.shown += os.read(self._ours, 65536).decode("utf-8", "replace")
                except OSError:
                    assert text in self.shown, f"it ended without {text!r}: {self.shown!r}"
        before, _, self.shown = self.shown.partition(text)
        return before

    def interrupt_prompt(self) -> None:
        """Ctrl-C until there is a new prompt: one between a prompt and the wait for keys is heard at the next key."""
        for _ in range(20):
            self.process.send_signal(signal.SIGINT)
            with suppress(AssertionError):
                self.wait_for("> ", seconds=3)
                return
        raise AssertionError(f"no new prompt came: {self.shown!r}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


def test_a_conversation_on_a_terminal(template: Path) -> None:
    terminal = Terminal(chat(template, "--host", "reference", "--context", "256", "--max-tokens", "100"))
    try:
        assert "storyteller on host reference; /help lists the commands" in terminal.wait_for("> ")
        terminal.type(f"{PROMPT}\n")
        terminal.wait_for(ANSWER)
        terminal.process.send_signal(signal.SIGINT)
        after = terminal.wait_for("\n> ")
        assert "Traceback" not in after
        terminal.type(f"{LONG * 12}\n")
        assert "the conversation has" in terminal.wait_for("(/drop forgets the oldest turn of 1 and then answers")
        terminal.wait_for("> ")
        terminal.type("/drop\n")
        terminal.wait_for("note: forgot the oldest turn of 1")
        terminal.wait_for("\n> ")
        terminal.type("/fly\n")
        terminal.wait_for("unknown command /fly: /clear starts over")
        terminal.wait_for("> ")
        terminal.type("word " * 300 + "\n")
        assert "the message alone has" in terminal.wait_for("(--context N")
        terminal.wait_for("> ")
        terminal.interrupt_prompt()
        terminal.type("/exit\n")
        assert terminal.process.wait(timeout=30) == 0
    finally:
        terminal.close()


def test_the_end_of_input_leaves(template: Path) -> None:
    terminal = Terminal(chat(template))
    try:
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.process.wait(timeout=30) == 0
    finally:
        terminal.close()


def test_the_bundled_model_goes_on_with_a_tale_and_answers_in_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{PROMPT}\nWhy is the sky blue?\n"))
    assert main(["chat", "storyteller", "--host", "reference", "--temperature", "0", "--max-tokens", "4"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == ANSWER, "the recorded one: the prompt is what it is without a template"
    assert second.startswith('"'), "somebody in the tale answers"
