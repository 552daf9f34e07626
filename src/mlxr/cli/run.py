"""`mlxr run`: generates text."""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from mlxr.cli.model_arguments import add_adapter_argument, add_context_argument, add_model_arguments, load_model
from mlxr.cli.prompt_options import add_prompt_arguments, prompt_ids
from mlxr.cli.prompt_source import add_prompt_source, read_prompt
from mlxr.cli.pull_progress import pull_absent
from mlxr.cli.sampling_options import add_sampling_arguments, sampling_line, sampling_of, sampling_stats
from mlxr.cli.speculation_options import add_speculation_arguments, speculation_line, speculation_stats
from mlxr.cli.split_note import add_link_argument, check_link, split_note
from mlxr.cli.terminal import show_any_character
from mlxr.cli.tier_options import add_tier_arguments, cache_line
from mlxr.compiler.cli.guard import noted_interrupts
from mlxr.compiler.errors import RequestError
from mlxr.compiler.text import printable
from mlxr.runtime.engine.completion import Completion
from mlxr.runtime.engine.generation import Generation
from mlxr.runtime.engine.model import Model
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.tokenizer.chat_template import process_begun


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "run", help="generate text", description="Generate text from a prompt, printed as it comes."
    )
    add_model_arguments(parser)
    add_context_argument(parser)
    add_adapter_argument(parser)
    add_speculation_arguments(parser)
    add_tier_arguments(parser)
    add_link_argument(parser)
    add_prompt_source(parser)
    add_prompt_arguments(parser)
    parser.add_argument(
        "--max-tokens", type=int, default=200, metavar="N", help="most tokens to generate (default: 200)"
    )
    parser.add_argument("--ignore-eos", action="store_true", help="continue where the model ends its answer")
    add_sampling_arguments(parser)
    parser.add_argument("--echo", action="store_true", help="print the prompt before the text that continues it")
    parser.add_argument("--stats", action="store_true", help="show speed and launches on standard error at the end")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    sampling = sampling_of(args)
    if args.max_tokens < 1:
        raise RequestError(f"--max-tokens is {args.max_tokens}; expected at least 1")
    check_link(args)
    prompt = read_prompt(args)
    show_any_character()
    pull_absent(args.model)
    with nullcontext() if args.raw else process_begun(), load_model(args, needs_text=True) as model:
        code = _generate(model, args, prompt, sampling)
        if (note := split_note(model, args.link)) is not None:  # now, when nobody waits for it
            sys.stdout.flush()
            print(f"note: {printable(note)}", file=sys.stderr)
        return code


def _generate(model: Model, args: argparse.Namespace, prompt: str, sampling: Sampling) -> int:
    ids, thought = prompt_ids(model, args, prompt)
    sampling = replace(sampling, thought=thought)
    generation = model.start([ids], max_tokens=args.max_tokens, sampling=sampling, ignore_eos=args.ignore_eos)
    interrupted = False
    if args.echo and not args.json:
        print(prompt, end="", flush=True)
    try:
        with noted_interrupts() as check_interrupt:
            for event in generation:
                if not args.json and event.text:
                    print(event.text, end="", flush=True)
                check_interrupt()
    except KeyboardInterrupt:
        interrupted = True
    completion = generation.completions[0]
    stats = _stats(model, generation, completion) | {"sampling": sampling_stats(model, sampling)}
    if args.json:
        reason = "interrupted" if interrupted else completion.finish_reason
        print(json.dumps({"text": completion.text, "token_ids": completion.token_ids, "finish_reason": reason} | stats))
    else:
        print()
        if completion.finish_reason == "context":
            context = f"the context of {model.limit.tokens} tokens is full"
            print(f"note: the answer ends here because {context}; --context N gives it more room", file=sys.stderr)
    if args.stats:
        core = model.core.stats()
        told = [sampling_line(model, sampling), str(model.types), model.context_line]
        _print_stats(stats, [*told, speculation_line(core), cache_line(core)])
    return 130 if interrupted else 0


def _stats(model: Model, generation: Generation, completion: Completion) -> dict[str, object]:
    """Counts and speeds. Speeds are null where nothing was measured: tokens beside the first have no decode time."""
    decoded = len(completion.token_ids) - generation.first_tokens
    prefill, decode = generation.prefill_seconds, generation.decode_seconds
    return {
        "prompt_tokens": completion.prompt_tokens,
        "host": model.host.name,
        "types": model.types.model_dump(mode="json"),
        "context": {"tokens": model.limit.tokens, "own": model.limit.own, "why": model.limit.why},
        "launches": _launches(model),
        "notes": list(model.notes),
        "prefill_tokens_per_second": round(completion.prompt_tokens / prefill, 2) if prefill else None,
        "decode_tokens_per_second": round(decoded / decode, 2) if decode and decoded > 0 else None,
        "cached_tokens": completion.cached_tokens,
        **speculation_stats(model.core.stats()),
    }


def _launches(model: Model) -> dict[str, int]:
    """A count for each kernel that was launched, in the order of the plan."""
    counts = model.host.launches
    plan = model.artifact.plan
    order = [kernel.name for program in plan.programs.values() for kernel in program.kernels]
    return {name: counts[name] for name in [*order, *sorted(set(counts) - set(order))] if counts[name]}


def _print_stats(stats: dict[str, object], lines: Sequence[str | None]) -> None:
    def speed(key: str) -> str:
        return f"{stats[key]:.1f} tokens/s" if stats[key] is not None else "not measured"

    launches = stats["launches"]
    assert isinstance(launches, dict), "made above"
    print(
        f"host {stats['host']}: {stats['prompt_tokens']} prompt tokens at {speed('prefill_tokens_per_second')}, "
        f"then {speed('decode_tokens_per_second')}; {sum(launches.values())} launches of {len(launches)} kernels",
        file=sys.stderr,
    )
    for line in filter(None, lines):
        print(f"  {printable(line)}", file=sys.stderr)
    for name, count in launches.items():
        print(f"  {count:6}  {name}", file=sys.stderr)
    notes = stats["notes"]
    assert isinstance(notes, list), "made above"
    for note in notes:
        if not any(line and note in line for line in lines):
            print(f"note: {printable(note)}", file=sys.stderr)
