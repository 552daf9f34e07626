"""The options that say how the model gets a prompt: through its chat template, or as it is."""

import argparse
from pathlib import Path

from mlxr.cli.reasoning_options import add_reasoning_arguments, reasoning_of, reasoning_option, tell_without_effect
from mlxr.compiler.errors import ChatTemplateError, RequestError
from mlxr.runtime.engine.model import Model
from mlxr.runtime.engine.sampling import ThoughtLimit
from mlxr.runtime.engine.too_long import check_length


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds them."""
    parser.add_argument(
        "--system",
        metavar="TEXT",
        help="a system message before the prompt; where the chat template takes none, it becomes part of the prompt",
    )
    parser.add_argument(
        "--template", type=Path, metavar="FILE", help="a Jinja2 chat template to use instead of the model's own"
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="give the model the prompt as it is; otherwise a model with a chat template gets it as a user message",
    )
    parser.add_argument(
        "--special",
        action="store_true",
        help="read special tokens that are spelled out in the prompt (<|im_start|>) as those tokens; otherwise they "
        "are plain text. With a chat template they are always read as tokens",
    )
    add_reasoning_arguments(parser)


def prompt_ids(model: Model, args: argparse.Namespace, prompt: str) -> tuple[list[int], ThoughtLimit | None]:
    """The tokens that the model gets for a prompt, and the limit on what it thinks before it answers.

    Raises:
        RequestError: the options contradict each other, or the model has no tokenizer.
        ChatTemplateError: the chat template is faulty or refuses the messages; or there is none, and one was asked for.
    """
    if args.raw and (args.system is not None or args.template is not None):
        option = "--template" if args.system is None else "--system"
        raise RequestError(f"{option} is for the chat template, which --raw leaves out: leave out one of the two")
    if args.raw and (given := reasoning_option(args)):
        raise RequestError(f"{given} is for the chat template, which --raw leaves out: leave out one of the two")
    tokenizer, reasoning = model.require_tokenizer(), reasoning_of(args)
    if not args.raw:
        messages = [] if args.system is None else [{"role": "system", "content": args.system}]
        try:
            template = model.chat_template(args.template)
        except ChatTemplateError:
            if args.system is not None or reasoning_option(args):
                raise
        else:
            try:
                with template:
                    variables = reasoning.variables_for(template)
                    text = template.render([*messages, {"role": "user", "content": prompt}], **variables)
                    thought = reasoning.limit(template, reasoning.find_form(template), text)
                    tell_without_effect(reasoning, template)
            except ChatTemplateError as error:
                raise ChatTemplateError(f"{error}. --raw gives the model the prompt as it is") from error
            check_length(text, tokenizer, model.limit)
            # The template writes what begins a text itself; control tokens spelled out in it are those tokens.
            return tokenizer.encode(text, add_special=False, parse_special=True), thought
    check_length(prompt, tokenizer, model.limit)
    return tokenizer.encode(prompt, parse_special=args.special), None
