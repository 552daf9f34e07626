"""What an engine answers to requests of every kind. As a module, a rank of a model that is split: rank 0 prints it.

python -m mlxr_tests.answers_rank SPEC
"""

import json
import sys
from pathlib import Path
from typing import Any

from mlxr import Engine, Sampling, ThoughtLimit
from mlxr.compiler.spec.load import load_spec
from mlxr.compiler.spec.model import ModelSpec
from mlxr_tests.storyteller import TINY

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"enum": [3, 4]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
LONG = "Once upon a time there was a little girl who liked to play in the park with her dog and her best friend."


def answers(spec: ModelSpec) -> dict[str, Any]:
    """The tokens of each request, and counters of what the engine did.

    Args:
        spec: of TINY, with an arena that is too small for four long answers.
    """
    found: dict[str, Any] = {}
    with Engine(spec, TINY, max_sequences=4, host="cpu", threads=1, prompt_lookup=True) as engine:

        def ask(name: str, prompts: list[str], **options: Any) -> list[Any]:
            completions = engine.generate_all(prompts, Sampling(**options))
            found[name] = [completion.token_ids for completion in completions]
            return completions

        (schema,) = ask("schema", ["A girl: "], json_schema=SCHEMA, max_tokens=120)
        found["text"] = schema.text
        ask("seeds", [LONG], temperature=0.9, top_p=0.95, seed=7, n=2, max_tokens=30)
        (again,) = ask("cached", [LONG], max_tokens=60, repetition_penalty=1.1)
        found["cached tokens"] = again.cached_tokens
        ask("many", [LONG + f" {word}" for word in ("One", "She", "They", "It")], max_tokens=90, ignore_eos=True)
        ask("repeated", ["The cat sat. The dog ran. " * 4], max_tokens=60, ignore_eos=True)
        ask(
            "thought",
            [LONG],
            max_tokens=24,
            thought=ThoughtLimit(3, "<think>", "\n</think>\n", "</think>", is_open=True),
        )
        stats = engine.stats()
        found["counters"] = {"preemptions": stats.preemptions, "draft_tokens": stats.draft_tokens}
    return found


if __name__ == "__main__":
    print(json.dumps(answers(load_spec(Path(sys.argv[1])))))
