"""Lists a walk through the code function by function, and how often the walk enters each file.

    python tests/architecture/walk.py compile    from a spec to its artifact
    python tests/architecture/walk.py load       from a name to a loaded model
    python tests/architecture/walk.py token      from a prompt to a token

A walk is what its top file does: the one that a reader has open while the walk goes on (`TOPS`). Each call from there
into another file is a stage, which ends when it returns there. A stage enters a file once, however often its functions
call each other; so a file is entered again when the walk comes back to it after it had returned to the top. Values that
all stages read (`PLAIN_DATA`) are no place to go to, imports are no part of a walk, nor is what other threads do.

The exit code is 1 if a file is entered more than `--most` times (2).
"""

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import mlxr
from mlxr_tests.storyteller import TINY

PACKAGE = f"{Path(mlxr.__file__).parent}{os.sep}"
TOPS = {
    "compile": ("compiler/driver.py",),
    "load": ("loading/load.py", "model_source.py"),
    "token": ("runtime/engine/generation.py", "runtime/engine/model.py"),
}
"""The top files of each walk, by all names that they have had."""
PLAIN_DATA = ("compiler/formats/", "compiler/ir/", "compiler/spec/", "compiler/text")
"""Packages of values that every stage reads: to ask a value is not to go anywhere."""


@dataclass
class Stage:
    """A call from a top file.

    Attributes:
        call: the function of the top file, and the one that it called.
        functions: by file, in the order in which they were first called.
    """

    call: str
    functions: dict[str, dict[str, None]] = field(default_factory=dict)


Where = tuple[str, str, Stage | None]
"""A file, a function, and the stage; None: a top file."""


@dataclass
class Walk:
    """The stages that were seen."""

    tops: tuple[str, ...]
    stages: list[Stage] = field(default_factory=list)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A context whose calls are the walk."""
        sys.setprofile(self._profile())
        try:
            yield
        finally:
            sys.setprofile(None)

    def entries(self) -> dict[str, list[int]]:
        """The numbers of the stages that entered each file."""
        found: dict[str, list[int]] = {}
        for number, stage in enumerate(self.stages, 1):
            for file in stage.functions:
                found.setdefault(file, []).append(number)
        return found

    def _profile(self) -> Callable[[FrameType, str, Any], None]:
        # The file of each frame, and its stage; of frames that are not the package's, those of the frame below.
        stack: list[Where] = [("", "", None)]
        generators: dict[FrameType, Where] = {}  # to go on with one is not to enter it again
        depth, importing = 0, 0

        def profile(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal depth, importing
            if event == "call":
                depth += 1
                if not importing and frame.f_code.co_filename.startswith("<frozen importlib"):
                    importing = depth
                where = generators.get(frame) or (stack[-1] if importing else self._called(frame, stack[-1]))
                if frame.f_code.co_flags & inspect.CO_GENERATOR:
                    generators[frame] = where
                stack.append(where)
            elif event == "return" and depth:
                stack.pop()
                if importing == depth:
                    importing = 0
                depth -= 1

        return profile

    def _called(self, frame: FrameType, caller: Where) -> Where:
        path, name = frame.f_code.co_filename, frame.f_code.co_qualname if sys.version_info >= (3, 11) else ""
        if not path.startswith(PACKAGE):
            return caller
        file, name = path.removeprefix(PACKAGE), name.replace(".<locals>", "")
        if file in self.tops or name.endswith(">"):  # an expression with a loop is not a function of its own
            return (file, name, None) if file in self.tops else caller
        stage = caller[2]
        if stage is None:
            at = f"{Path(caller[0]).name}: {caller[1]}" if caller[0] else "the walk"
            stage = Stage(f"{at} -> {name}")
            self.stages.append(stage)
        if not file.startswith(PLAIN_DATA):
            stage.functions.setdefault(file, {})[name] = None
        return file, name, stage


def _compile(walk: Walk) -> None:
    from mlxr.compiler.driver import compile_spec
    from mlxr.compiler.spec.catalog import find_spec
    from mlxr.compiler.spec.load import load_spec

    path = find_spec("storyteller")
    with walk.watched():
        compile_spec(load_spec(path), targets=("cpu",))


def _load(walk: Walk) -> None:
    mlxr.load(TINY, host="cpu").close()  # compiled before
    with walk.watched():
        model = mlxr.load(TINY, host="cpu")
    model.close()


def _token(walk: Walk) -> None:
    with mlxr.load(TINY, host="cpu") as model, walk.watched():
        answer = model.start(["Once upon a time"], max_tokens=2)
        next(answer)


def main() -> int:
    """Runs a walk and prints it."""
    walks = {"compile": _compile, "load": _load, "token": _token}
    parser = argparse.ArgumentParser(description="List a walk through the code, and how often it enters each file.")
    parser.add_argument("walk", choices=walks)
    parser.add_argument("--most", type=int, default=2, metavar="N", help="how often a file may be entered (2)")
    args = parser.parse_args()
    walk = Walk(TOPS[args.walk])
    walks[args.walk](walk)
    for number, stage in enumerate(walk.stages, 1):
        print(f"{number}. {stage.call}")
        for file, names in stage.functions.items():
            print(f"     {file}: {', '.join(names)}")
    entries = walk.entries()
    often = {file: numbers for file, numbers in entries.items() if len(numbers) > args.most}
    print(f"\n{len(entries)} files in {len(walk.stages)} stages; entered more than {args.most} times: {len(often)}")
    for file, numbers in sorted(often.items(), key=lambda item: -len(item[1])):
        print(f"  {len(numbers)} x {file}, by {', '.join(map(str, numbers))}")
    return 1 if often else 0


if __name__ == "__main__":
    sys.exit(main())
