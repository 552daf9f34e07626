"""Runs `mlxr diff`. Results go to standard output, everything else to standard error."""

import argparse
import os
import shutil
import sys

from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.spec.change import Changes
from mlxr.diff.diff_text import diff_text
from mlxr.diff.model_diff import model_diff
from mlxr.inspect.text_table import Ink
from mlxr.loading.resolve import here, resolve_artifact

_DEFAULT_SIZE = (120, 24)


def show(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code.

    Raises:
        MlxrError: a model cannot be found or compiled, or does not hold the context.
    """
    chip = find_chip(args.chip) if args.chip else here()
    changes = Changes(accepted_keys=tuple(args.accept_key), trust_artifact=True)  # it runs neither
    a, b = (resolve_artifact(model, changes, chip)[0] for model in (args.a, args.b))
    diff = model_diff(a, b, chip, args.context, lines=args.lines)
    if args.json:
        print(diff.model_dump_json(indent=1))
        return 0
    width = shutil.get_terminal_size(_DEFAULT_SIZE).columns
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    sys.stdout.write(diff_text(diff, width, Ink(colour)))
    return 0
