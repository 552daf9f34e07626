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
from pathlib import Path

from mlxr_tests.counted_chats import TESTS, counted, sums, table
from mlxr_tests.prompt_shapes import SHAPES
from mlxr_tests.real_files import LLAMA_CPP_CHATS


def main() -> int:
    """Counts, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=LLAMA_CPP_CHATS.folder, help="llama.cpp's sources")
    parser.add_argument("--only", default="", help="templates whose names have this")
    parser.add_argument("--cuts", type=int, default=10, help="of each answer, at random (default 10)")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/CHAT.md")
    parser.add_argument("--verbose", action="store_true", help="list what comes out otherwise")
    arguments = parser.parse_args()
    if not (arguments.folder / TESTS).is_file():
        print(f"{arguments.folder} has no {TESTS}: give llama.cpp's folder, or run make test-real")
        return 1
    rows = []
    for row in counted(arguments.folder, arguments.cuts, arguments.only):
        rows.append(row)
        if arguments.markdown:
            continue
        each = f" (tokens {row.right['tokens']}, text {row.right['text']})" if row.num_cases else ""
        known = "" if row.is_known else ", no calls"
        prompts, cases = f"{row.rendered} of {len(SHAPES)}", f"{row.right['both']} of {row.num_cases}"
        print(f"{row.name}: {row.form}{known}; prompts {prompts}; cases {cases}{each}", flush=True)
        for told in row.told if arguments.verbose else ():
            print(f"  {told}")
    print(table(rows) if arguments.markdown else sums(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
