"""Has a tiny random model call tools where it must, in the form of each chat template, and counts what is read back.

    python tests/server/chat/try_forced_calls.py                    # templates that `make test-real` has fetched
    python tests/server/chat/try_forced_calls.py path/to/llama.cpp  # those in its models/templates
    python tests/server/chat/try_forced_calls.py --invented         # forms that no model has

The model's weights are random, and its vocabulary has the template's markers and parts of them. Tools have texts,
numbers, lists, objects and choices, among them texts that are the form's own markers; a quarter of the answers each
must call any tool once, any tools, one that is named, and one without arguments. An answer is right if it is such
calls, nothing else comes, their arguments follow the schemas, and they are what the model wrote: that is compared with
what the template writes of the calls, which is also read back. Answers that 1,200 tokens have cut are told apart.
"""

import argparse
import os
import sys
from pathlib import Path

from mlxr_tests.counted_chats import template_files
from mlxr_tests.forced_calls import forced_calls
from mlxr_tests.invented_templates import INVENTED
from mlxr_tests.judged_chats import SpokenModel, control_names
from mlxr_tests.real_files import LLAMA_CPP_CHATS
from mlxr_tests.tried_forms import TriedForm


def main() -> int:
    """Tries, and prints; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=LLAMA_CPP_CHATS.folder, help="llama.cpp's sources")
    parser.add_argument("--invented", action="store_true", help="try the invented templates")
    parser.add_argument("--only", default="", help="templates whose names have this")
    parser.add_argument("--answers", type=int, default=200, help="of each form (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the model's choices (default 0)")
    parser.add_argument("--verbose", action="store_true", help="list what comes out wrong")
    arguments = parser.parse_args()
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    templates = (
        {name: (each.text, (*each.control, *each.ends)) for name, each in INVENTED.items()}
        if arguments.invented
        else {path.stem: (text := path.read_text(), control_names(text)) for path in template_files(arguments.folder)}
    )
    known = right = tried = cut = same = 0
    for name, (text, control) in templates.items():
        if arguments.only.lower() not in name.lower():
            continue
        with SpokenModel(text, control) as model:
            if not model.format.takes_tools:
                continue
            phrases = [each.answer for _, each in TriedForm(model).texts.values() if each.answer]
        forced = forced_calls(text, control, phrases or ["{}"], arguments.answers, arguments.seed)
        known, right, tried, cut, same = (
            known + 1,
            right + forced.right,
            tried + forced.tried,
            cut + forced.cut,
            same + forced.same,
        )
        print(f"{name}: {forced.right} of {forced.tried}, {forced.same} as written, {forced.cut} cut", flush=True)
        for told in forced.told[:10] if arguments.verbose else ():
            print(f"  {told!a}")
    print(f"forms: {known}; {right} of {tried} calls read back, {same} as the template writes them, {cut} cut")
    return int(right != tried)


if __name__ == "__main__":
    sys.exit(main())
