"""How many of llama.cpp's cases of parsed answers come out as there, for each of its chat templates."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from mlxr.compiler.errors import MlxrError
from mlxr.runtime.engine.sampling import Sampling
from mlxr.server.chat.chat_job import ChatJob
from mlxr_tests.chat_formats import TIME, WEATHER
from mlxr_tests.judged_chats import CaseJudge
from mlxr_tests.outside_chats import ChatCase, chat_cases
from mlxr_tests.prompt_shapes import SHAPES, missing

TESTS = "tests/test-chat.cpp"
_QUOTED = re.compile("'([^']+)'")


class Row:
    """What is counted for a template."""

    def __init__(self, name: str, text: str, cases: list[ChatCase], num_cuts: int) -> None:
        self.name, self.num_cases, self.told = name, len(cases), []
        self.right = Counter[str]()
        self.rendered = 0
        judge = CaseJudge(text, num_cuts)
        try:
            model = judge.models["tokens"]
            self.form, self.is_known = model.format.family, model.format.takes_tools
            for shape, messages in SHAPES.items():
                try:
                    text = model.text(model.prompt(ChatJob(messages, Sampling(), tools=(WEATHER, TIME))))
                    told = missing(text, messages)
                except MlxrError as error:
                    told = str(error)
                self.rendered += not told
                if told:
                    self.told.append(f"prompt {shape}: {told}")
            for case in cases:
                wrong = {way: told for way in judge.models if (told := judge.judge(case, way))}
                self.right.update(way for way in judge.models if way not in wrong)
                self.right["both"] += not wrong
                for told in sorted(set(wrong.values())):
                    ways = " and ".join(way for way in wrong if wrong[way] == told)
                    self.told.append(f"as {ways}: {case.answer!r}\n    {told}")
        finally:
            judge.close()


def counted(folder: Path, num_cuts: int, only: str = "") -> Iterator[Row]:
    """A row for each template.

    Args:
        folder: llama.cpp's sources.
        num_cuts: of each answer, at random.
        only: templates whose names have this.
    """
    cases = chat_cases(folder)
    for path in template_files(folder):
        if only.lower() in path.name.lower():
            yield Row(path.stem, path.read_text(), [case for case in cases if case.template == path.name], num_cuts)


def template_files(folder: Path) -> list[Path]:
    """The chat templates among llama.cpp's sources, in alphabetical order."""
    return sorted((folder / "models/templates").glob("*.jinja"), key=lambda path: path.name.lower())


def table(rows: Sequence[Row]) -> str:
    """The rows and their sums as Markdown."""
    lines = ["| template | form | prompts | cases |", "|---|---|---|---|"]
    for row in rows:
        num = f"{row.right['both']} of {row.num_cases}" if row.num_cases else ""
        form = _QUOTED.sub(r"`\1`", row.form).replace("|", "\\|")
        lines.append(f"| {row.name} | {form} | {row.rendered} of {len(SHAPES)} | {num} |")
    return "\n".join([*lines, "", f"{sums(rows)}."])


def sums(rows: Sequence[Row]) -> str:
    """What all rows come to."""
    known = [row for row in rows if row.is_known]
    return (
        f"Forms known: {len(known)} of {len(rows)}; prompts: {sum(row.rendered for row in rows)} of "
        f"{len(rows) * len(SHAPES)}; cases: {sum(row.right['both'] for row in rows)} of "
        f"{sum(row.num_cases for row in rows)}, in known forms {sum(row.right['both'] for row in known)} of "
        f"{sum(row.num_cases for row in known)}"
    )
