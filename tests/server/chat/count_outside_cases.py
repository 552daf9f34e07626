"""Counts how many of llama.cpp's cases of parsed answers come out as there, for each of its chat templates.

    python tests/server/chat/count_outside_cases.py                      # what `make test-real` has fetched
    python tests/server/chat/count_outside_cases.py path/to/llama.cpp    # its sources: models/templates and tests
    python tests/server/chat/count_outside_cases.py --markdown           # the table of docs/CHAT.md

Of each template it tells the form of its calls, how many of eight prompts with tools it renders, and the cases. Each
answer is read whole and cut at random, by the server's own path; once from a vocabulary that has the markers as control
tokens (those that look like `<|name|>` or `[NAME]`) and once as text. A case counts if both are right.

All cases are counted, with these differences in what is asked for: ids of calls are MLXR's own; a continued message
is told without its beginning, and a thought without what the prompt has begun of it. White space at the ends of texts
is not compared, nor arguments that are cut off, as in llama.cpp's own test.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from mlxr.compiler.errors import MlxrError
from mlxr.runtime.engine.sampling import Sampling
from mlxr.server.chat.chat_job import ChatJob
from mlxr_tests.chat_formats import TIME, WEATHER
from mlxr_tests.judged_chats import CaseJudge
from mlxr_tests.outside_chats import ChatCase, chat_cases
from mlxr_tests.prompt_shapes import SHAPES, missing
from mlxr_tests.real_files import LLAMA_CPP_CHATS


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


def main() -> int:
    """Counts, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=LLAMA_CPP_CHATS.folder, help="llama.cpp's sources")
    parser.add_argument("--only", default="", help="templates whose names have this")
    parser.add_argument("--cuts", type=int, default=10, help="of each answer, at random (default 10)")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/CHAT.md")
    parser.add_argument("--verbose", action="store_true", help="list what comes out otherwise")
    arguments = parser.parse_args()
    if not (arguments.folder / "tests/test-chat.cpp").is_file():
        print(f"{arguments.folder} has no tests/test-chat.cpp: give llama.cpp's folder, or run make test-real")
        return 1
    cases = chat_cases(arguments.folder)
    rows = []
    for path in sorted((arguments.folder / "models/templates").glob("*.jinja"), key=lambda path: path.name.lower()):
        if arguments.only.lower() in path.name.lower():
            of_it = [case for case in cases if case.template == path.name]
            row = Row(path.stem, path.read_text(), of_it, arguments.cuts)
            rows.append(row)
            if not arguments.markdown:
                print(
                    f"{row.name}: {row.form}{'' if row.is_known else ', no calls'}; prompts {row.rendered} of "
                    f"{len(SHAPES)}; cases {row.right['both']} of {row.num_cases}"
                    + (f" (tokens {row.right['tokens']}, text {row.right['text']})" if row.num_cases else "")
                )
                for told in row.told if arguments.verbose else ():
                    print(f"  {told}")
    if arguments.markdown:
        print("| template | form | prompts | cases |\n|---|---|---|---|")
        for row in rows:
            num = f"{row.right['both']} of {row.num_cases}" if row.num_cases else ""
            print(f"| {row.name} | {row.form} | {row.rendered} of {len(SHAPES)} | {num} |")
        print()
    known = [row for row in rows if row.is_known]
    print(
        f"forms known: {len(known)} of {len(rows)}; prompts {sum(row.rendered for row in rows)} of "
        f"{len(rows) * len(SHAPES)}; cases {sum(row.right['both'] for row in rows)} of "
        f"{sum(row.num_cases for row in rows)} (of known forms {sum(row.right['both'] for row in known)} of "
        f"{sum(row.num_cases for row in known)})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
