"""A program that prints the greedy tokens of the recorded prompts as JSON: python -m mlxr_tests.greedy_tokens HOST.

It is a separate process, because MLX reads its settings only once.
"""

import json
import sys

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr_tests.storyteller import GOLDEN, Q8_0, storyteller_spec

if __name__ == "__main__":
    recorded = json.loads((GOLDEN / "storyteller-golden.json").read_text())
    artifact = compile_spec(storyteller_spec(cache={"max_sequences": 3}, compute="exact")).artifact
    model = mlxr.load(artifact, Q8_0, host=sys.argv[1])
    answers = model.start([prompt["ids"] for prompt in recorded], max_tokens=48, ignore_eos=True).finish()
    print(json.dumps([answer.token_ids for answer in answers]))
