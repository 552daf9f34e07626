"""How long it takes to learn the form of answers from chat templates, and to parse answers in it.

    python benchmarks/answers.py TEMPLATE.jinja ... [--tokens 20000]

Of each template: milliseconds to learn its form, and microseconds for each token of four characters, of answers that
are text alone, and calls with long arguments, as the template itself writes them. Learning is timed by the clock, as
the template runs in a process of its own; parsing in CPU time of the thread, of three runs the least.
"""

import argparse
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from mlxr.compiler.errors import MlxrError
from mlxr.runtime.engine.completion import Event
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.server.chat.answer_parser import AnswerParser
from mlxr.server.chat.answer_reader import AnswerReader
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.formats.family import Beginning, TemplateFamily
from mlxr.server.chat.formats.registry import family_of, form_name

_QUESTION = {"role": "user", "content": "What is the weather?"}
_TOOL = {
    "type": "function",
    "function": {
        "name": "write",
        "description": "Writes a file",
        "parameters": {"type": "object", "properties": {"text": {"type": "string", "description": "its text"}}},
    },
}
_SENTENCE = "The quick <brown> fox [jumps] over {the} lazy dog. "
_TOKEN = 4


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("templates", type=Path, nargs="+", metavar="TEMPLATE", help="files with Jinja2 programs")
    parser.add_argument("--tokens", type=int, default=20_000, help="of each answer (default 20000)")
    args = parser.parse_args()
    print(f"{'template':<44} {'learn ms':>8} {'text us':>8} {'calls us':>8}  form")
    for path in args.templates:
        tokens = {"bos_token": "", "eos_token": ""}
        with closing(ChatTemplate(path.read_text(encoding="utf-8"), str(path), tokens)) as template:
            template.names({})  # starts the process, and compiles the template
            start = time.perf_counter()
            family = family_of(template, {}, {})
            learned = (time.perf_counter() - start) * 1e3
            text = _SENTENCE * (args.tokens * _TOKEN // len(_SENTENCE))
            times = [_microseconds(family, answer) for answer in (text, _calls(family, template, text))]
        shown = [f"{number:8.2f}" if number else "       -" for number in times]
        print(f"{path.stem:<44} {learned:8.0f} {' '.join(shown)}  {form_name(family)}", flush=True)


def _calls(family: TemplateFamily, template: ChatTemplate, text: str) -> str:
    """An answer with two calls, as the template writes it; nothing if it refuses the conversation."""
    calls = [
        {"id": f"call0000{n}", "type": "function", "function": {"name": "write", "arguments": {"text": text[n::2]}}}
        for n in range(2)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": calls}
    messages = [_QUESTION, message]
    job = ChatJob(tuple(messages), Sampling(), (_TOOL,))
    try:
        written = template.render(family.messages(job), False, **family.variables(job))
    except MlxrError:
        return ""
    return written[written.rfind(_QUESTION["content"]) + len(_QUESTION["content"]) :]


def _microseconds(family: TemplateFamily, answer: str) -> float:
    """CPU time for a token."""
    if not answer:
        return 0.0
    pieces = [answer[at : at + _TOKEN] for at in range(0, len(answer), _TOKEN)]
    return min(_seconds(family, pieces) for _ in range(3)) / len(pieces) * 1e6


def _seconds(family: TemplateFamily, pieces: Sequence[str]) -> float:
    job = ChatJob((_QUESTION,), Sampling(), (_TOOL,))
    reader = AnswerReader()
    parser = AnswerParser(_NoTokens(), reader, family.read(reader, job, Beginning.OPEN))  # type: ignore[arg-type]
    events = [Event(0, 0, piece) for piece in pieces]
    start = time.thread_time()
    for event in events:
        parser.push(event)
    parser.finish()
    return time.thread_time() - start


class _NoTokens:
    """What a parser reads of a tokenizer, of one without control tokens."""

    control_ids: frozenset[int] = frozenset()
    eos_ids: frozenset[int] = frozenset()


if __name__ == "__main__":
    main()
