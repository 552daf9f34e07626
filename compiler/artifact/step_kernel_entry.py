"""A decode step as one CUDA kernel: what host cuda must know to compile and launch it.

The kernel's arguments are, in order: `inputs`; a counter u64 that stays between launches, at which blocks wait for each
other; the mask u32 of the conditions that hold; the turn u32[8] of the last step kernel; `outputs`; the next turn.
"""

from collections.abc import Mapping

from mlxr.compiler.artifact.launch import BatchDim, Condition
from mlxr.compiler.spec.record import Record

LAYERS, SCRATCH = "layers", "scratch"
"""Arguments that no launch names: the constants of all layers, [layers, 8] u32, and the memory of activations."""
INCLUDE = '#include "metal_on_cuda.cuh"'
"""The line of a step's text in whose place the host puts its prelude."""


class SequenceCounts(Record):
    """Decode steps of `first_count` to `last_count` sequences, each with one new token and one row of logits."""

    first_count: int
    last_count: int

    @property
    def counts(self) -> range:
        """These numbers of sequences."""
        return range(self.first_count, self.last_count + 1)

    def takes(self, dims: Mapping[BatchDim, int]) -> bool:
        """Whether a batch is such a step, if it is a decode step at all."""
        return dims["tokens"] in self.counts and dims["tokens"] == dims["seqs"] == dims["rows"]


class StepKernelEntry(SequenceCounts):
    """A kernel that runs all launches of a decode step, in the plan's order, for some numbers of sequences.

    Attributes:
        name: of the kernel in its text.
        file: its CUDA text, which has the line `INCLUDE` in place of the host's prelude.
        threads: of a block.
        blocks: wanted on each multiprocessor; all blocks of the grid must be on the GPU at once.
        inputs: buffers that it reads, by the plan's names, and `LAYERS`.
        outputs: the logits and the arena's last token, by the plan's names, and `SCRATCH`.
        conditions: of its launches, on the context; bit i of the mask says whether conditions[i] holds.
        scratch_bytes: size of `SCRATCH`.
    """

    name: str
    file: str
    threads: int
    blocks: int
    inputs: tuple[str, ...]
    outputs: tuple[str, str, str]
    conditions: tuple[Condition, ...]
    scratch_bytes: int

    def mask(self, dims: Mapping[BatchDim, int]) -> int:
        """Which conditions hold for a batch, as bits."""
        return condition_mask(self.conditions, dims)


class StepsAsLaunches(SequenceCounts):
    """Decode steps that the geometry wants as one kernel and that cannot be one.

    Attributes:
        because: what stands in the way, for people.
    """

    because: str


def condition_mask(conditions: tuple[Condition, ...], dims: Mapping[BatchDim, int]) -> int:
    """Which conditions hold for a batch: bit i is that of conditions[i]."""
    return sum(1 << i for i, condition in enumerate(conditions) if condition.holds(dims))
