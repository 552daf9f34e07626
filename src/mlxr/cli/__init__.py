"""The `mlxr` command: the only place that sees both the compiler and the runtime.

Results go to standard output, everything else to standard error. Exit codes: 0, done; 1, the input is at fault; 2, the
usage is wrong; 130, interrupted.
"""

import argparse
import atexit
import gc
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mlxr.compiler.cli.guard import guarded, held_interrupts
from mlxr.compiler.cli.parser import CommandParser, VersionAction
from mlxr.runtime.garbage_waits import garbage_waits

COMMANDS = {
    "run": ("run", "generate text"),
    "chat": ("chat", "converse with a model"),
    "serve": ("serve", "serve models to clients of OpenAI, Anthropic and Ollama"),
    "launch": ("launch", "start a coding agent that uses a model here"),
    "ps": ("ps", "list the running servers"),
    "stop": ("stop", "end a running server"),
    "service": ("service", "let the system start the server, and keep it running"),
    "bench": ("bench", "measure a model's speed"),
    "perplexity": ("perplexity", "measure how well a model predicts a text"),
    "imatrix": ("imatrix", "measure which columns of weights matter"),
    "quantize": ("quantize", "write a model in another format"),
    "fuse": ("fuse", "write a model with LoRA adapters inside"),
    "tokenize": ("tokenize", "show the tokens of a text"),
    "inspect": ("inspect", "show what an artifact holds"),
    "diff": ("diff", "show what differs between two models"),
    "tune": ("tune", "choose launch geometry by measuring on this machine's GPU"),
    "logits": ("logits", "write the logits of given tokens"),
    "import": ("import_spec", "write the spec of a model's own files"),
    "add": ("add", "give a model a name"),
    "fit": ("fit", "tell what a model would take, before it is fetched"),
    "pull": ("pull", "fetch a model from the hub"),
    "list": ("list_models", "list the registered models"),
    "show": ("show", "show what a model is"),
    "remove": ("remove", "take a model's name out of the registry"),
    "models": ("models", "list the families and bundled specs"),
    "cache": ("cache", "list or clear what MLXR keeps on disk"),
    "completion": ("completion", "let a shell complete commands, options and models"),
}
"""Each command's module here, which is imported when the command is given, and its line in the help."""

_SEARCHES = 1000
"""Searches for young garbage before one in all that there is: beside a model that takes 50 to 260 ms of some answer."""
atexit.register(gc.freeze)  # of what is left when a process ends, none is worth a search for garbage

_ALSO = {"rm": "remove", "ls": "list"}
"""What people type for a command because other programs call it so."""

_PASSING = {"launch"}
"""Commands that pass on what follows `--`, options included."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    if argv is None:  # the process is ours
        gc.set_threshold(*gc.get_threshold()[:2], _SEARCHES)
    return guarded(lambda: _main(sys.argv[1:] if argv is None else list(argv)))


def _main(argv: list[str]) -> int:
    if argv[:2] == ["completion", "--words"]:
        from mlxr.cli.completion import print_candidates  # noqa: PLC0415 (as the commands are)

        return print_candidates(argv[2:])
    parser = CommandParser(
        prog="mlxr",
        description="Run, inspect, compare, tune and check compiled language models. Compile specs with mlxr-compile.",
    )
    parser.add_argument("--version", action=VersionAction)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    if argv[:1] in ([], ["help"]):
        argv = [*argv[1:], "--help"]
    if argv[:1] and argv[0] in _ALSO:
        argv = [_ALSO[argv[0]], *argv[1:]]
    chosen = next((word for word in argv if not word.startswith("-")), None)
    with held_interrupts(), garbage_waits(), _no_blas_threads():
        for name, (module, line) in COMMANDS.items():
            if name == chosen:
                # Inside the guard: loading MLX takes long enough to be interrupted.
                importlib.import_module(f"mlxr.cli.{module}").add_parser(commands)
            else:
                commands.add_parser(name, help=line)
    commands.add_parser("help", help="show this, or what a command does", usage="mlxr help [COMMAND]")
    own, passed = _split(argv) if chosen in _PASSING else (argv, [])
    args: argparse.Namespace = parser.parse_args(own, argparse.Namespace(argv=argv, passed=passed))
    with held_interrupts():
        from mlxr.runtime.parallel.launch import naming_rank  # noqa: PLC0415 (not for the help)
        from mlxr.runtime.parallel.launcher_process import fill_input, watch_launcher  # noqa: PLC0415

    if "MLX_RANK" in os.environ:
        watch_launcher()
        if chosen != "chat":  # the others read no input under mlx.launch
            fill_input()
    with naming_rank():
        code: int = args.run(args)
    return code


@contextmanager
def _no_blas_threads() -> Iterator[None]:
    """A context in which NumPy, if it is imported, starts no threads: they wait busily for products, and none comes."""
    name = "OPENBLAS_NUM_THREADS"
    if name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]  # a program that a command starts is not meant


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """The words before and after `--`."""
    end = argv.index("--") if "--" in argv else len(argv)
    return argv[:end], argv[end + 1 :]
