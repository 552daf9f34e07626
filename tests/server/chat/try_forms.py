"""Tries the form of answers that is learned from each chat template, which itself is the judge, and counts.

    python tests/server/chat/try_forms.py                         # templates that `make test-real` has fetched
    python tests/server/chat/try_forms.py path/to/llama.cpp       # those in its models/templates
    python tests/server/chat/try_forms.py --invented              # forms that no model has

What is counted, of each template that has a form of calls:

* written: what the template writes of an assistant's message (text, a thought, calls with arguments of all kinds) is
  read back as this message. Messages that the template leaves out in part are not asked for.
* cut: the same answers, and broken ones, cut at random, come to the same deltas.
* kept: a word put anywhere into these answers is told, and once. In ids and in what stands between arguments it is not.
* forced: a call chosen at random among all that its grammar allows is one call that follows the tool's schema, and is
  read back as the same call from what the template writes of it.
* allowed: the grammar allows the calls that the template writes.
* us: microseconds of CPU time for a token of four characters, the least of seven runs.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from mlxr_tests.counted_chats import template_files
from mlxr_tests.invented_templates import INVENTED
from mlxr_tests.judged_chats import SpokenModel, control_names
from mlxr_tests.real_files import LLAMA_CPP_CHATS
from mlxr_tests.tried_forms import TriedForm


def main() -> int:
    """Tries, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=LLAMA_CPP_CHATS.folder, help="llama.cpp's sources")
    parser.add_argument("--invented", action="store_true", help="try the invented templates")
    parser.add_argument("--only", default="", help="templates whose names have this")
    parser.add_argument("--cuts", type=int, default=1000, help="of each form (default 1000)")
    parser.add_argument("--forced", type=int, default=10, help="calls of each form (default 10)")
    parser.add_argument("--text", action="store_true", help="markers are text, not control tokens")
    parser.add_argument("--verbose", action="store_true", help="list what comes out wrong")
    arguments = parser.parse_args()
    paths = template_files(arguments.folder)
    right, tried, known, slowest = Counter[str](), Counter[str](), 0, 0.0
    templates = (
        {name: (each.text, (*each.control, *each.ends), each.ends, each.without) for name, each in INVENTED.items()}
        if arguments.invented
        else {path.stem: (text := path.read_text(), control_names(text), (), ()) for path in paths}
    )
    for name, (text, control, ends, without) in templates.items():
        if arguments.only.lower() not in name.lower():
            continue
        with SpokenModel(text, () if arguments.text else control) as model:
            if not model.format.takes_tools:
                print(f"{name}: no form of calls is known")
                continue
            known += 1
            form = TriedForm(model, ends, without)
            if not form.texts:
                print(f"{name}: {model.format.family}: its template refuses these tools")
                continue
            counts = {
                "written": form.read_back(),
                "cut": form.cuts(arguments.cuts),
                "kept": form.kept(arguments.cuts // 10),
                "forced": form.forced(arguments.forced),
                "allowed": form.own_calls_allowed(),
            }
            cost = form.microseconds()
        slowest = max(slowest, cost)
        sums = ", ".join(f"{what} {count}" for what, count in counts.items())
        print(f"{name}: {model.format.family}: {sums}, {cost:.1f} us", flush=True)
        for what, count in counts.items():
            right[what] += count.right
            tried[what] += count.tried
            for told in count.told[:20] if arguments.verbose else ():
                print(f"  {what}: {told!a}")
    sums = ", ".join(f"{what} {right[what]} of {tried[what]}" for what in tried)
    print(f"forms known: {known} of {len(templates)}; {sums}; at most {slowest:.1f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
