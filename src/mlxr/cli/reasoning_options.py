"""The options that say how a model thinks before it answers."""

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxr.runtime.engine.reasoning import Reasoning
    from mlxr.runtime.tokenizer.chat_template import ChatTemplate


def add_reasoning_arguments(parser: "argparse._ActionsContainer") -> None:
    """Adds them."""
    parser.add_argument(
        "--thinking",
        action=argparse.BooleanOptionalAction,
        help="whether the model thinks before it answers (default: what its chat template says)",
    )
    parser.add_argument(
        "--thinking-budget",
        type=_tokens,
        metavar="N",
        help="most tokens of reasoning: then the thought is closed as the chat template closes it, and the answer "
        "follows; 0: none (default: no limit)",
    )
    parser.add_argument(
        "--chat-template-kwargs",
        type=_variables,
        default={},
        metavar="JSON",
        help='variables for the chat template, such as \'{"reasoning_effort": "low"}\'',
    )


def reasoning_of(args: argparse.Namespace) -> "Reasoning":
    """What they say."""
    from mlxr.runtime.engine.reasoning import Reasoning  # noqa: PLC0415 (slow to import: not for the help)

    switch = {} if args.thinking is None else {"enable_thinking": args.thinking}
    return Reasoning({**args.chat_template_kwargs, **switch}, args.thinking_budget)


def tell_without_effect(reasoning: "Reasoning", template: "ChatTemplate") -> None:
    """Says on standard error which of these options have no effect with a template.

    Raises:
        ChatTemplateError: the template took too long or too much.
    """
    from mlxr.runtime.tokenizer.thinking_form import find_thinking  # noqa: PLC0415

    names = template.names({})
    if not reasoning.without_effect(names, has_thoughts=False):
        return  # the rule, and then nothing need be rendered to see how thoughts are written
    if told := reasoning.without_effect(names, find_thinking(template) is not None):
        print(f"note: {told}", file=sys.stderr)


def reasoning_option(args: argparse.Namespace) -> str | None:
    """The name of one of them that was given; None: none was."""
    given = {
        "--thinking-budget": args.thinking_budget is not None,
        "--chat-template-kwargs": bool(args.chat_template_kwargs),
        "--no-thinking" if args.thinking is False else "--thinking": args.thinking is not None,
    }
    return next((name for name, is_given in given.items() if is_given), None)


def _tokens(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of tokens, 0 or more")
    return int(text)


def _variables(text: str) -> dict[str, Any]:
    try:
        variables = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not JSON: {error or 'nested too deeply'}") from error
    if not isinstance(variables, dict):
        raise argparse.ArgumentTypeError(f'{text!r:.80} is not a JSON object, such as {{"enable_thinking": false}}')
    for name in ("messages", "add_generation_prompt", "tools"):
        if name in variables:
            raise argparse.ArgumentTypeError(f"{name} is not a variable of the template's own: leave it out")
    return variables
