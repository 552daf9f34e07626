"""`mlxr inspect` of an artifact for several ranks: what each has, and what they send each other."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlxr.compiler.artifact import Artifact, BatchDim
from mlxr.compiler.artifact.parallel.parallel_plan import Message, ParallelPlan, RankShare
from mlxr.compiler.artifact.parallel.rank_plan import COLLECTIVES
from mlxr.compiler.artifact.program import PHASES, PhaseName
from mlxr.compiler.artifact.typical_steps import chunk_dims, decode_dims, usual_context
from mlxr.compiler.spec.divide_counts import Range
from mlxr.compiler.text import counted, size
from mlxr.inspect.text_table import NARROWEST, Column, Ink, Row, render_table


def split_of(artifact: Artifact) -> ParallelPlan:
    """How a model is split, where the caller knows that it is."""
    split = artifact.parallel
    assert split is not None, "the model is split"
    return split


def step_dims(artifact: Artifact) -> dict[PhaseName, Mapping[BatchDim, int]]:
    """The batches of the report: a decode step of one sequence, and the largest chunk of a prompt, with its logits."""
    plan = artifact.of_rank(0).plan
    return {"decode": decode_dims(1, usual_context(plan)), "prefill": chunk_dims(plan)}


def rows_of(message: Message, dims: Mapping[BatchDim, int]) -> int:
    """How many rows a message has."""
    return dims["rows" if message.dim == "rows" else "tokens"]


def given_bytes(messages: Sequence[Message], dims: Mapping[BatchDim, int]) -> int:
    """Bytes that a rank gives to the collectives of a step; what it receives does not count."""
    return sum(message.row_bytes * rows_of(message, dims) for message in messages if message.kind != "receive")


def ranks_report(artifact: Artifact, target: str, width: int, ink: Ink) -> str:
    """The whole text, ending in a newline.

    Args:
        artifact: of a model that is split.
        target: whose memory to show.
        width: columns of the terminal.
        ink: whether to use escape codes.
    """
    split, spec, dims = split_of(artifact), artifact.spec, step_dims(artifact)
    about = (
        f"{spec.name} over {split.size} ranks: {counted(split.pipeline, 'stage')} of {counted(split.tensor, 'rank')}; "
        f"memory of target {target}; show a rank's launches with --rank N, predict times with --predict --link NAME"
    )
    lines = textwrap.wrap(about, max(width, NARROWEST), subsequent_indent="  ")
    lines[0] = lines[0].replace(spec.name, ink.bold(spec.name), 1)
    columns = [
        Column("rank", 9, right=True),
        Column("layers", 9),
        Column("heads", 6),
        Column("KV heads", 6),
        Column("MLP columns", 5),
        Column("vocabulary", 4),
        Column("weights", 7, right=True),
        Column("arena", 3, right=True),
        Column("activations", 2, right=True),
        Column("total", 8, right=True),
        Column("budget", 1, right=True),
    ]
    if any(share.experts for share in split.ranks):
        columns.insert(5, Column("experts", 5))
    table = [_cells(artifact, rank, share, target, len(columns) == 12) for rank, share in enumerate(split.ranks)]
    lines += ["", *render_table(columns, table, width, ink)]
    for phase in PHASES:
        lines += ["", *_messages(split, phase, dims[phase], width, ink)]
    return "\n".join(lines) + "\n"


def rank_lines(artifact: Artifact, rank: int, width: int) -> list[str]:
    """What one rank has and sends, above the report of its launches."""
    split, steps = split_of(artifact), step_dims(artifact)
    share, sent = split.ranks[rank], []
    for phase in PHASES:
        messages = share.messages[phase]
        kinds = ", ".join(f"{number} {kind}" for kind, number in _by_kind(messages).items())
        given = given_bytes(messages, steps[phase])
        sent.append(f"{phase} of {counted(steps[phase]['tokens'], 'token')}: {kinds}; gives {size(given)}")
    about = (
        f"rank {rank} of {split.size}: stage {rank // split.tensor} of {split.pipeline}, part {rank % split.tensor} of "
        f"{split.tensor}; layers {_range(share.layers)}, heads {_all(share.heads)}, KV heads "
        f"{_all(share.kv_heads)}. Messages of a step: {'. '.join(sent)}"
    )
    return textwrap.wrap(about, max(width, NARROWEST), subsequent_indent="  ")


def ranks_json(artifact: Artifact) -> dict[str, Any]:
    """The same for programs."""
    split = split_of(artifact)
    return {
        "name": artifact.spec.name,
        "tensor": split.tensor,
        "pipeline": split.pipeline,
        "ranks": [rank_json(artifact, rank) for rank in range(split.size)],
    }


def rank_json(artifact: Artifact, rank: int) -> dict[str, Any]:
    """What one rank has and sends, for programs."""
    share, dims = split_of(artifact).ranks[rank], step_dims(artifact)
    memory = {target: plan.model_dump() | {"total_bytes": plan.total_bytes} for target, plan in share.memory.items()}
    return {
        "rank": rank,
        **share.model_dump(mode="json", exclude={"memory", "messages"}),
        "memory": memory,
        "steps": [
            {
                "step": phase,
                "batch": dict(dims[phase]),
                "given_bytes": given_bytes(share.messages[phase], dims[phase]),
                "messages": [
                    message.model_dump(mode="json") | {"bytes": message.row_bytes * rows_of(message, dims[phase])}
                    for message in share.messages[phase]
                ],
            }
            for phase in PHASES
        ],
    }


def _cells(artifact: Artifact, rank: int, share: RankShare, target: str, experts: bool) -> tuple[str, ...]:
    memory, budget = share.memory[target], artifact.spec.budget_of(rank)
    return (
        str(rank),
        _range(share.layers),
        _all(share.heads),
        _all(share.kv_heads),
        _all(share.columns) or "-",
        *([_all(share.experts) or "-"] if experts else []),
        _range(share.vocabulary),
        size(memory.weights_bytes),
        size(memory.arena_bytes),
        size(memory.activation_bytes),
        size(memory.total_bytes),
        "-" if budget is None else size(budget),
    )


def _all(ranges: Mapping[int, Range]) -> str:
    return ", ".join(map(_range, ranges.values()))


def _messages(
    split: ParallelPlan, phase: PhaseName, dims: Mapping[BatchDim, int], width: int, ink: Ink
) -> Iterator[str]:
    batch = "1 sequence" if phase == "decode" else f"a chunk of {counted(dims['tokens'], 'token')}"
    yield ink.bold(f"{phase}: messages of a step of {batch}"[: max(width, NARROWEST)])
    columns = [Column("rank", 9, right=True), *(Column(kind, 5, right=True) for kind in COLLECTIVES)]
    columns.append(Column("bytes given", 8, right=True))
    rows: list[Row] = []
    for rank, share in enumerate(split.ranks):
        messages = share.messages[phase]
        kinds = _by_kind(messages)
        numbers = [str(kinds[kind]) if kind in kinds else "-" for kind in COLLECTIVES]
        rows.append((str(rank), *numbers, size(given_bytes(messages, dims))))
    yield from render_table(columns, rows, width, ink)


def _by_kind(messages: Sequence[Message]) -> dict[str, int]:
    kinds = [message.kind for message in messages]
    return {kind: kinds.count(kind) for kind in COLLECTIVES if kind in kinds}


def _range(part: Range) -> str:
    """A range with its last number included."""
    first, end = part
    return str(first) if end - first == 1 else f"{first}-{end - 1}"
