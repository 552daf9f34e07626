"""What `mlxr-compile` says of an artifact for several ranks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlxr.compiler.artifact.artifact import Artifact
from mlxr.compiler.artifact.parallel.parallel_plan import Message, ParallelPlan, RankShare
from mlxr.compiler.artifact.program import MemoryPlan
from mlxr.compiler.driver import Compilation
from mlxr.compiler.spec.divide_counts import Range
from mlxr.compiler.spec.heads_text import heads_of
from mlxr.compiler.text import counted, size


def parallel_summary(compilation: Compilation, split: ParallelPlan, output: Path | None) -> dict[str, object]:
    """The summary for programs."""
    artifact = compilation.artifact
    plan = artifact.of_rank(0).plan
    return {
        "name": artifact.spec.name,
        "artifact": str(output) if output else None,
        "digest": artifact.digest,
        "targets": list(plan.targets),
        "chip": artifact.chip.name,
        "parallel": {"tensor": split.tensor, "pipeline": split.pipeline, "ranks": split.size},
        "ranks": [_rank_json(rank, share) for rank, share in enumerate(split.ranks)],
        "arena": {
            "num_blocks": plan.arena.num_blocks,
            "block_size": plan.arena.block_size,
            "context": plan.arena.context,
            "max_sequences": plan.arena.max_sequences,
        },
        "compile_ms": round(compilation.time_us / 1000, 1),
    }


def _rank_json(rank: int, share: RankShare) -> dict[str, object]:
    largest, messages = _largest(share), share.messages["decode"]
    return {
        "rank": rank,
        **share.model_dump(mode="json", exclude={"memory", "messages"}),
        "memory": {
            target: memory.model_dump() | {"total_bytes": memory.total_bytes} for target, memory in share.memory.items()
        },
        "needed_bytes": largest.total_bytes,
        "budget_bytes": largest.budget_bytes,
        "decode_messages": {
            "count": len(messages),
            "given_bytes": _given_bytes(messages),
            "by_kind": _by_kind(messages),
        },
    }


def describe_parallel(compilation: Compilation, split: ParallelPlan, output: Path | None) -> str:
    """The summary for people."""
    artifact = compilation.artifact
    model, arena = artifact.spec.model, artifact.of_rank(0).plan.arena
    stages = counted(split.pipeline, "stage")
    lines = [
        f"{artifact.spec.name}: {model.num_layers} layers, hidden {model.hidden_size}, "
        f"{heads_of(model)}, vocabulary {model.vocab_size}",
        f"  split over {split.size} ranks: {stages} of {counted(split.tensor, 'rank')}, for targets "
        f"{', '.join(split.ranks[0].memory)}",
        f"  arena    {arena.num_blocks} blocks of {arena.block_size} tokens on every rank, context {arena.context} x "
        f"{counted(arena.max_sequences, 'sequence')}",
    ]
    for rank, share in enumerate(split.ranks):
        lines += _rank_lines(artifact, rank, share)
    lines.append(
        f"compiled in {compilation.time_us / 1000:.0f} ms" + (f" to {output}" if output else "; -o DIR writes it")
    )
    if output:
        lines.append(f"run it with: mlx.launch -n {split.size} -- mlxr run {output} --weights W --prompt ...")
    return "\n".join(lines)


def _rank_lines(artifact: Artifact, rank: int, share: RankShare) -> list[str]:
    model, memory, messages = artifact.spec.model, _largest(share), share.messages["decode"]
    has = [
        _range("layer", share.layers, model.num_layers),
        f"{' and '.join(_ranges('head', share.heads))} on {' and '.join(_ranges('KV head', share.kv_heads))}",
        *_ranges("MLP column", share.columns),
        *_ranges("expert", share.experts),
    ]
    if not _weights(artifact, rank).isdisjoint(("embedding", "output")):
        has.append(_range("vocabulary row", share.vocabulary, model.vocab_size))
    totals = ", ".join(f"{size(needed.total_bytes)} ({target})" for target, needed in share.memory.items())
    budget = f" of a budget of {size(memory.budget_bytes)}" if memory.budget_bytes else ""
    kinds = ", ".join(f"{count} {kind}" for kind, count in _by_kind(messages).items())
    first = f" ({next(iter(share.memory))})" if len(share.memory) > 1 else ""  # others have other types
    return [
        f"  rank {rank}   {', '.join(has)}",
        f"           weights {size(memory.weights_bytes)}, arena {size(memory.arena_bytes)}, total {totals}{budget}",
        f"           a decode step of one sequence: {counted(len(messages), 'message')} ({kinds}), "
        f"{size(_given_bytes(messages))} given{first}",
    ]


def _weights(artifact: Artifact, rank: int) -> set[str]:
    return {part.name for weight in artifact.of_rank(rank).plan.weights for part in weight.parts}


def _range(what: str, part: Range, whole: int) -> str:
    """A range with its last number included: `layers 0-15 of 32`."""
    first, end = part
    if part == (0, whole):
        return f"all {counted(whole, what)}"
    return f"{what}s {first}-{end - 1} of {whole}" if end - first > 1 else f"{what} {first} of {whole}"


def _ranges(what: str, parts: Mapping[int, Range]) -> list[str]:
    return [_range(what, part, whole) for whole, part in sorted(parts.items())]


def _largest(share: RankShare) -> MemoryPlan:
    """The memory of the target that needs most; the budget applies to that."""
    return max(share.memory.values(), key=lambda memory: memory.total_bytes)


def _given_bytes(messages: Sequence[Message]) -> int:
    """Bytes that a rank gives to the collectives of a decode step of one sequence; what it receives does not count."""
    return sum(message.row_bytes for message in messages if message.kind != "receive")


def _by_kind(messages: Sequence[Message]) -> dict[str, int]:
    return dict(Counter(message.kind for message in messages))
