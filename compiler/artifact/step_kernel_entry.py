"""A decode step as one CUDA kernel: what host cuda needs to compile and launch it.

The kernel's arguments are, in order: `inputs`; the u64 addresses of `weights`, if there are any; a u64 counter, kept
between launches, at which blocks wait for each other; the u32 mask of the conditions that hold; the u32[8] turn of the
last step kernel; `outputs`; the next turn.
"""

from collections.abc import Mapping

from mlxr.compiler.artifact.launch import Condition
from mlxr.compiler.ir.tensor import BatchDim
from mlxr.compiler.spec.record import Record

LAYERS, SCRATCH, PEERS = "layers", "scratch", "peers"
"""Arguments that no launch names: the constants of all layers, [layers, 8] u32; the activation memory; and, where the
step sums over ranks, [ranks] u64, the addresses of all ranks' mailboxes."""
INCLUDE = '#include "metal_on_cuda.cuh"'
"""The line of a step's text that the host replaces with its prelude."""


class SequenceCounts(Record):
    """Decode steps of `first_count` to `last_count` sequences; each has one new token and one row of logits."""

    first_count: int
    last_count: int

    @property
    def counts(self) -> range:
        """These numbers of sequences."""
        return range(self.first_count, self.last_count + 1)

    def takes(self, dims: Mapping[BatchDim, int]) -> bool:
        """Whether a decode step with this batch is one of them."""
        return dims["tokens"] in self.counts and dims["tokens"] == dims["seqs"] == dims["rows"]


class StepKernelEntry(SequenceCounts):
    """A kernel that runs all launches of a decode step, in the plan's order, for some numbers of sequences.

    Attributes:
        name: the kernel's name in its text.
        file: its CUDA text, which has the line `INCLUDE` in place of the host's prelude.
        threads: threads of a block.
        blocks: blocks per multiprocessor to aim for; the whole grid must be on the GPU at once.
        inputs: the buffers that it is given in each step, by the plan's names, and `LAYERS`.
        weights: those that it only reads and that stay where they are, by the plan's names: it has their addresses.
        outputs: the logits (of a rank, its own columns) and the arena's last token, by the plan's names, and `SCRATCH`.
        conditions: its launches' conditions on the context; bit i of the mask says whether conditions[i] holds.
        scratch_bytes: size of `SCRATCH`.
        pool_bytes: shared memory that a launch asks for; 0: a block has enough by itself.
    """

    name: str
    file: str
    threads: int
    blocks: int
    inputs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    outputs: tuple[str, str, str]
    conditions: tuple[Condition, ...]
    scratch_bytes: int
    pool_bytes: int = 0

    def mask(self, dims: Mapping[BatchDim, int]) -> int:
        """Which conditions hold for a batch, as bits."""
        return condition_mask(self.conditions, dims)


class StepsAsLaunches(SequenceCounts):
    """Decode steps that the geometry asks for as one kernel, but that cannot be one.

    Attributes:
        because: the reason, for people.
    """

    because: str


def condition_mask(conditions: tuple[Condition, ...], dims: Mapping[BatchDim, int]) -> int:
    """Which conditions hold for a batch: bit i stands for conditions[i]."""
    return sum(1 << i for i, condition in enumerate(conditions) if condition.holds(dims))
