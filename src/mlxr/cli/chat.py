"""`mlxr chat`: a conversation with a model, by its own chat template."""

import argparse
import re
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from mlxr.cli.argparse_types import text_argument
from mlxr.cli.model_arguments import add_adapter_argument, add_context_argument, add_model_arguments, load_model
from mlxr.cli.pull_progress import pull_absent
from mlxr.cli.reasoning_options import add_reasoning_arguments, reasoning_of, tell_without_effect
from mlxr.cli.sampling_options import add_sampling_arguments, sampling_line, sampling_of
from mlxr.cli.speculation_options import add_speculation_arguments
from mlxr.cli.terminal import refuse_other_bytes_than_text, show_any_character
from mlxr.cli.tier_options import add_tier_arguments
from mlxr.compiler.cli.guard import noted_interrupts
from mlxr.compiler.errors import ArenaError, ChatTemplateError, RequestError
from mlxr.compiler.text import printable, without_python
from mlxr.runtime.engine.conversation import Conversation
from mlxr.runtime.engine.errors import PromptTooLongError
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.tokenizer.chat_template import process_begun

_COMMANDS = "/clear starts over, /drop forgets the oldest turn, /exit or Ctrl-D leaves, Ctrl-C ends an answer"
_LEAVE = {"/exit", "/quit", "/bye"}  # the last two: what other programs call it
_SMALL_CONTEXT = 4096
"""In a smaller one, an answer without a limit of its own takes a quarter, so that the conversation can go on."""
_PICTURE = re.compile(r"\S+\.(?:png|jpe?g|gif|webp|bmp)\b", re.IGNORECASE)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "chat",
        help="converse with a model",
        description="Converse with a model by its own chat template. Each line is a message, "
        f"also where standard input is not a terminal. {_COMMANDS}.",
    )
    add_model_arguments(parser)
    add_context_argument(parser)
    add_adapter_argument(parser)
    add_speculation_arguments(parser)
    add_tier_arguments(parser)
    parser.add_argument(
        "--system",
        type=text_argument,
        metavar="TEXT",
        help="a system message to begin with; where the template takes none, it becomes part of the first message",
    )
    parser.add_argument(
        "--template", type=Path, metavar="FILE", help="a Jinja2 chat template to use instead of the model's own"
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="most tokens of an answer (default: up to the end of the context; of a context below 4096 a quarter)",
    )
    parser.add_argument(
        "--drop-oldest",
        action="store_true",
        help="when the conversation becomes too long for the context, forget its oldest turns and say so",
    )
    add_reasoning_arguments(parser)
    add_sampling_arguments(parser)
    parser.add_argument("--stats", action="store_true", help="show tokens read, reused and written after each answer")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    sampling, reasoning = sampling_of(args), reasoning_of(args)
    if args.max_tokens is not None and args.max_tokens < 1:
        raise RequestError(f"--max-tokens is {args.max_tokens}; expected at least 1")
    show_any_character()
    refuse_other_bytes_than_text()
    pull_absent(args.model)
    with process_begun(), load_model(args, needs_text=True) as model, model.chat_template(args.template) as template:
        template.start()
        if sys.stdin.isatty():
            print(f"{model.artifact.spec.name} on host {model.host.name}; /help lists the commands", file=sys.stderr)
            _enable_editing()
        if args.stats:
            print(sampling_line(model, sampling), file=sys.stderr)
        tell_without_effect(reasoning, template)
        with Conversation(model, template, args.system, reasoning=reasoning) as conversation:
            context = model.limit.tokens
            most = context // 4 if args.max_tokens is None and 4 <= context < _SMALL_CONTEXT else args.max_tokens
            return _converse(conversation, _Options(most, args.max_tokens, sampling, args.stats, args.drop_oldest))


@dataclass(frozen=True)
class _Options:
    max_tokens: int | None
    asked_max_tokens: int | None  # what the user gave
    sampling: Sampling
    stats: bool
    drop_oldest: bool


def _converse(conversation: Conversation, options: _Options) -> int:
    """Reads messages and commands until there are no more.

    One that cannot be answered is reported; a terminal then goes on with the next one, a pipe ends.
    """
    terminal = sys.stdin.isatty()
    waiting = ""  # a message that was too long together with the conversation before it
    while True:
        message = _read_message(terminal)
        if message is None or message in _LEAVE:
            return 0
        try:
            if message in ("/help", "/?"):
                print(_COMMANDS, file=sys.stderr)
                message = ""
            elif message == "/clear":
                conversation.clear()
                waiting = message = ""
            elif message == "/drop":
                message, waiting = waiting, ""
                _drop(conversation, conversation.turns_to_drop(message, options.max_tokens) if message else 1)
            elif message.startswith("/") and message[1:].isalpha():
                unknown = f"unknown command {message}: {_COMMANDS}"
                if not terminal:
                    raise RequestError(unknown)
                print(unknown, file=sys.stderr)
                message = ""
            if message:
                waiting = ""
                _tell_of_pictures(message)
                _answer(conversation, message, options)
        except PromptTooLongError as error:
            if not terminal:
                helps = conversation.num_turns and not options.drop_oldest
                raise PromptTooLongError(f"{error}; --drop-oldest makes room by itself" if helps else error) from error
            waiting = _offer(conversation, message, options, error)
        except (ArenaError, ChatTemplateError, RequestError) as error:
            if not terminal:
                raise
            print(f"error: {printable(without_python(error))}\n(/clear starts over)", file=sys.stderr)


def _offer(conversation: Conversation, message: str, options: _Options, error: PromptTooLongError) -> str:
    """Says how a message that is too long can be answered; returns it if /drop helps, else nothing."""
    try:
        turns = conversation.turns_to_drop(message, options.max_tokens)
    except (ChatTemplateError, PromptTooLongError) as alone:
        print(f"error: {printable(without_python(alone))}", file=sys.stderr)
        return ""
    print(
        f"error: {printable(without_python(error))}\n"
        f"(/drop forgets {_oldest(turns)} of {conversation.num_turns} and then answers this message; "
        "/clear starts over)",
        file=sys.stderr,
    )
    return message


def _drop(conversation: Conversation, turns: int) -> None:
    """Drops the oldest turns and says how many."""
    before = conversation.num_turns
    conversation.drop_oldest(turns)
    dropped = before - conversation.num_turns
    print(f"note: forgot {_oldest(dropped)} of {before}" if dropped else "note: nothing to forget", file=sys.stderr)


def _oldest(turns: int) -> str:
    return "the oldest turn" if turns == 1 else f"the {turns} oldest turns"


def _answer(conversation: Conversation, message: str, options: _Options) -> None:
    """Prints an answer as it comes; Ctrl-C ends it."""
    start = time.perf_counter()
    if options.drop_oldest and (turns := conversation.turns_to_drop(message, options.max_tokens)):
        _drop(conversation, turns)
    pieces = conversation.ask(message, options.max_tokens, options.sampling)
    with closing(pieces), suppress(KeyboardInterrupt), noted_interrupts() as check_interrupt:
        for piece in pieces:
            print(piece, end="", flush=True)
            check_interrupt()
    print(flush=True)
    completion = conversation.completion
    if completion is not None and completion.finish_reason == "context":
        print("note: the answer ends here because the context is full; /drop forgets the oldest turn", file=sys.stderr)
    if completion is not None and completion.finish_reason == "length" and options.asked_max_tokens is None:
        print(
            f"note: the answer ends here after {options.max_tokens} tokens, a quarter of the context; "
            "--max-tokens N allows more",
            file=sys.stderr,
        )
    if options.stats and completion is not None:
        read = completion.prompt_tokens - completion.cached_tokens
        print(
            f"{read} tokens read, {completion.cached_tokens} reused, {len(completion.token_ids)} written in "
            f"{time.perf_counter() - start:.2f} s",
            file=sys.stderr,
        )


def _tell_of_pictures(message: str) -> None:
    """Says that a picture, whose path was typed or dropped into the terminal, is not looked at."""
    for found in _PICTURE.findall(message):
        with suppress(OSError):
            if Path(found.strip("'\"")).is_file():
                print(f"note: mlxr chat takes no pictures; the model reads the words {found}", file=sys.stderr)


def _read_message(terminal: bool) -> str | None:
    """The next line; None at the end."""
    try:
        if terminal:
            return input("> ").strip()
        line = sys.stdin.readline()
    except EOFError:
        print(file=sys.stderr)
        return None
    except KeyboardInterrupt:
        if not terminal:
            raise
        print(file=sys.stderr)
        return ""
    except UnicodeDecodeError as error:
        raise RequestError(f"a message on standard input is not {error.encoding}: {error.reason}") from error
    return line.strip() if line else None


def _enable_editing() -> None:
    """Line editing and history at the prompt, where Python has them."""
    with suppress(ImportError):
        import readline  # noqa: F401, PLC0415 (importing it is what enables it)
