"""Counts how many cases of other projects MLXR judges as they do, and lists the others.

python tests/runtime/engine/constraint/count_outside_cases.py --llama-cpp path/to/llama.cpp
"""

import argparse
from collections import Counter
from pathlib import Path

from mlxr.compiler.errors import RequestError
from mlxr_tests.outside_cases import Judge, llama_cpp_cases


def count_llama_cpp(folder: Path, verbose: bool) -> None:
    """Prints how many grammars, schemas and answers of llama.cpp's tests are judged as there."""
    judge, counts = Judge(), Counter[tuple[str, bool]]()

    def count(what: str, is_right: bool, text: str) -> None:
        counts[what, is_right] += 1
        if verbose and not is_right:
            print(f"{what}: {text}\n")

    for case in llama_cpp_cases(folder):
        try:
            constraint = judge.constraint(case.option, case.source)
        except RequestError as error:
            count(
                f"{case.option}: refused by both" if case.is_refused else f"{case.option}: taken",
                case.is_refused,
                f"{case.source}\n{error}",
            )
            for answer in case.right + case.wrong:
                count(f"{case.option}: answers judged alike", False, repr(answer))
            continue
        count(
            f"{case.option}: refused by both" if case.is_refused else f"{case.option}: taken",
            not case.is_refused,
            case.source,
        )
        for answers, expected in ((case.right, True), (case.wrong, False)):
            for answer in answers:
                told = f"{answer!r} should be {'allowed' if expected else 'forbidden'} by {case.source}"
                count(f"{case.option}: answers judged alike", judge.allows(constraint, answer) == expected, told)
    for what in sorted({what for what, _ in counts}):
        print(f"{what}: {counts[what, True]} of {counts[what, True] + counts[what, False]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=Path, help="a folder with llama.cpp's sources")
    parser.add_argument("--verbose", action="store_true", help="list the cases that are judged otherwise")
    arguments = parser.parse_args()
    if arguments.llama_cpp:
        count_llama_cpp(arguments.llama_cpp, arguments.verbose)
