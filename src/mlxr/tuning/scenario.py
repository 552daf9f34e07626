"""The batches in which launches are timed, and the kinds of launch in a batch."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.schedule.geometry import AttendTile, DecodeAttention, MatrixTiles, OneRow, SeveralRows
from mlxr.runtime.hosts.batch import Batch
from mlxr.tuning.random_inputs import decode_batch, prefill_batch
from mlxr.tuning.site_tuning import Sizes
from mlxr.tuning.timed_launches import planned

Ops = Mapping[str, Sequence[str]]
"""The ops to time of each site, by name: one for each kind of op that the site has."""


@dataclass(frozen=True)
class Scenario:
    """A batch, and the sizes that are chosen by its times.

    Attributes:
        name: for people.
        sizes: their flat names.
        sequences: of a decode step; 0: a prefill step.
        tokens: of each sequence: in the cache with the new one, or of the prompt.
        every_row: whether a prompt gives logits of all its tokens.
    """

    name: str
    sizes: tuple[str, ...]
    sequences: int
    tokens: int
    every_row: bool = False

    def batch(self, artifact: Artifact) -> Batch:
        """The batch for an artifact.

        Raises:
            RequestError: the artifact does not hold so many tokens or sequences.
        """
        if self.sequences:
            return decode_batch(artifact, self.sequences, self.tokens)
        return prefill_batch(artifact, self.tokens, "all" if self.every_row else "last")


def scenarios(max_sequences: int, max_tokens: int, context: int) -> tuple[Scenario, ...]:
    """The batches of an artifact: one sequence, several, a prompt.

    Args:
        max_sequences: what the artifact holds.
        max_tokens: of a step.
        context: tokens of a sequence in decode.
    """
    few = min(8, max_tokens)
    of_several = (*SeveralRows.names(), *MatrixTiles.names())
    several = Scenario(f"a prompt of {few} tokens", of_several, 0, few)
    if max_sequences > 1:
        count = min(8, max_sequences)
        several = Scenario(f"{count} sequences", of_several, count, context)
    of_one = (*OneRow.names(), *DecodeAttention.names())
    return (
        Scenario(f"1 sequence of {context} tokens", of_one, 1, context),
        several,
        Scenario(f"a prompt of {max_tokens} tokens", AttendTile.names(), 0, max_tokens),
    )


@dataclass(frozen=True)
class LaunchKind:
    """One kind of launch in a batch.

    Attributes:
        sizes: those of its sizes that the scenario chooses.
        ops: an op of each kind, by name: ops of one kind have the same kernels.
    """

    sizes: Sizes
    ops: list[str]


def kinds_of(artifact: Artifact, batch: Batch, wanted: Collection[str]) -> dict[str, LaunchKind]:
    """The kinds of launch in a batch that have some of the wanted sizes, by the site that geometry rules name."""
    chosen_of = {kernel.name: kernel.chosen for kernel in artifact.plan.program("metal").kernels}
    kernels_of: dict[str, list[str]] = {}
    for launch in planned(artifact, batch):
        kernels_of.setdefault(launch.op, []).append(launch.kernel)
    kinds: dict[str, LaunchKind] = {}
    seen: set[tuple[str, ...]] = set()
    for op, kernels in kernels_of.items():
        choices = [chosen for kernel in kernels if (chosen := chosen_of[kernel])]
        sizes = {name: value for chosen in choices for name, value in chosen.sizes.items() if name in wanted}
        if sizes and tuple(kernels) not in seen:
            seen.add(tuple(kernels))
            kinds.setdefault(choices[0].site, LaunchKind(sizes, [])).ops.append(op)
    return kinds
