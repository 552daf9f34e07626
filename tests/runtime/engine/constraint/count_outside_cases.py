"""Counts how many cases of other projects MLXR judges as they do, and lists the others with `--verbose`.

    python tests/runtime/engine/constraint/count_outside_cases.py --llama-cpp path/to/llama.cpp
    python tests/runtime/engine/constraint/count_outside_cases.py --schema-suite JSON-Schema-Test-Suite/tests/draft7
    python tests/runtime/engine/constraint/count_outside_cases.py --mask-bench jsonschemabench/maskbench/data

Of schemas it is told apart whether MLXR says that it does not enforce all of them. Answers that a schema allows and
MLXR does not have their properties in another order, mostly.
"""

import argparse
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.constraint import unenforced
from mlxr_tests.outside_cases import Case, Judge, llama_cpp_cases, mask_bench_cases, schema_suite_cases


class Counts:
    """How many cases of a kind are judged alike."""

    def __init__(self, verbose: bool) -> None:
        self._verbose = verbose
        self._counts = Counter[tuple[str, bool]]()

    def add(self, what: str, is_right: bool, text: str) -> None:
        """Counts a case, and prints it if it is judged otherwise."""
        self._counts[what, is_right] += 1
        if self._verbose and not is_right:
            print(f"{what}: {text}\n")

    def show(self) -> None:
        """Prints the sums."""
        for what in sorted({what for what, _ in self._counts}):
            right, wrong = self._counts[what, True], self._counts[what, False]
            print(f"{what}: {right} of {right + wrong}")


def count(cases: Iterable[Case], counts: Counts) -> None:
    """Judges cases."""
    judge = Judge()
    for case in cases:
        what, told = case.option, f"{case.source}"
        try:
            constraint = judge.constraint(case.option, case.source)
            if case.option == "json_schema" and unenforced(case.source):
                what = "json_schema, in part"
        except (RequestError, TypeError) as error:
            counts.add(
                f"{what}: {'refused by both' if case.is_refused else 'taken'}", case.is_refused, f"{told}\n{error}"
            )
            continue
        counts.add(f"{what}: {'refused by both' if case.is_refused else 'taken'}", not case.is_refused, told)
        for answers, expected in ((case.right, True), (case.wrong, False)):
            for answer in answers:
                counts.add(
                    f"{what}: {'allowed' if expected else 'forbidden'} by both",
                    judge.allows(constraint, answer) == expected,
                    f"{answer!r} should be {'allowed' if expected else 'forbidden'} by {told}",
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=Path, help="a folder with llama.cpp's sources")
    parser.add_argument("--schema-suite", type=Path, help="a folder of one draft of JSON-Schema-Test-Suite")
    parser.add_argument("--mask-bench", type=Path, help="a folder with MaskBench's data")
    parser.add_argument("--verbose", action="store_true", help="list the cases that are judged otherwise")
    arguments = parser.parse_args()
    for folder, read in (
        (arguments.llama_cpp, llama_cpp_cases),
        (arguments.schema_suite, schema_suite_cases),
        (arguments.mask_bench, mask_bench_cases),
    ):
        if folder is not None:
            counts = Counts(arguments.verbose)
            count(read(folder), counts)
            counts.show()
