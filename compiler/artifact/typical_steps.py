"""Batches that stand for a model's steps, and how many launches they have on hosts without MLX's functions."""

from mlxr.compiler.artifact.plan import Plan
from mlxr.compiler.artifact.program import Phase
from mlxr.compiler.ir.tensor import BatchDim

_USUAL_CONTEXT = 512


def usual_context(plan: Plan) -> int:
    """Tokens of each sequence in a decode step that is timed or predicted, if nobody says how many."""
    return min(_USUAL_CONTEXT, plan.arena.context)


def decode_dims(sequences: int, context: int) -> dict[BatchDim, int]:
    """Dims of a batch of sequences with one new token each and contexts of `context` tokens."""
    return {"tokens": sequences, "seqs": sequences, "rows": sequences, "tiles": sequences, "context": context}


def chunk_dims(plan: Plan) -> dict[BatchDim, int]:
    """Dims of the largest chunk of one prompt."""
    tokens = min(plan.max_tokens, plan.arena.context)
    tiles = -(-tokens // plan.query_tile)
    return {"tokens": tokens, "seqs": 1, "rows": 1, "tiles": tiles, "context": tokens}


def launches_of(plan: Plan, phase: Phase) -> int:
    """How many launches a step of one sequence has: one token in decode, the largest chunk in prefill."""
    dims = decode_dims(1, plan.whole_context) if phase.name == "decode" else chunk_dims(plan)
    return sum(launch.runs(dims, library=False) for launch in phase.launches)
