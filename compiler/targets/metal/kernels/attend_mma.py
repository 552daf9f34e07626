"""Attention of a decode step with MMA."""

from dataclasses import KW_ONLY, dataclass, fields

from mlxr.compiler.targets.metal.kernel_parts.kernel import THREADGROUP_BYTES
from mlxr.compiler.targets.metal.kernels.attend import AttendKernel

MMA_HEADS, MMA_KEYS = 8, 16
"""Query heads and keys of one matrix instruction."""


@dataclass(frozen=True)
class AttendMmaKernel(AttendKernel):
    """Decode attention with MMA, for at most 8 query heads per KV head; `unroll` has no effect.

    Attributes:
        together: threadgroups that share a context, and merge what they have in each other's memory.
        resident: threadgroups that a multiprocessor has registers for, on hosts whose compiler asks.
    """

    template = "attend_mma.metal.jinja"
    _: KW_ONLY
    together: int = 1
    resident: int = 1

    @staticmethod
    def can_replace(kernel: AttendKernel) -> bool:
        """Whether matrix instructions can do the work of a kernel."""
        turns_lanes = kernel.rope_layout != "half" or kernel.rotary_dim // 2 % (kernel.head_dim // 32) == 0
        return kernel.suits_mma and kernel.gqa_ratio <= MMA_HEADS and turns_lanes

    @staticmethod
    def replacing(kernel: AttendKernel, together: int) -> "AttendMmaKernel":
        """The MMA kernel that does the work of a kernel; it takes all query heads of a KV head."""
        same = {field.name: getattr(kernel, field.name) for field in fields(kernel)}
        changes = {"label": f"{kernel.label}_mma", "heads": kernel.gqa_ratio, "unroll": 1}
        return AttendMmaKernel(**same | changes, together=together)

    @property
    def cluster(self) -> int:
        """See `MetalKernel.cluster`."""
        return self.together

    @property
    def one_block(self) -> bool:
        """Whether 16 keys that are read at once always lie in one block."""
        whole = self.partition % MMA_KEYS == 0 and self.window is None
        return whole and self.arena.block_size % MMA_KEYS == 0

    @property
    def value_stride(self) -> int:
        """Numbers from one head's values to the next head's; heads begin in different banks."""
        return self.head_dim + 4

    @property
    def merge_heads(self) -> int:
        """Query heads that are merged between two barriers: equal numbers, in as few turns as memory allows."""
        head_bytes = 4 * self.simdgroups * self.value_stride
        turns = -(-self.heads // max(1, (THREADGROUP_BYTES - self._fixed_bytes) // head_bytes))
        return -(-self.heads // turns)

    @property
    def own_vectors(self) -> int:
        """Vectors of four elements of all heads that one of the threadgroups that share a context finishes."""
        return self.heads * self.head_dim // (4 * self.together)

    @property
    def sums_vectors(self) -> int:
        """Vectors from a simdgroup's sums to the next one's."""
        return self.merge_heads * self.value_stride // 4

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the queries, of the new token, and of the simdgroups' results."""
        return self._fixed_bytes + self.simdgroups * 16 * self.sums_vectors

    @property
    def _fixed_bytes(self) -> int:
        newest = self.head_dim + self.heads if self.own_keys else 0
        own = self.together * (4 * self.own_vectors + 2 * self.heads) if self.together > 1 else 0
        return 4 * (self.heads * (self.head_dim + 2 * self.simdgroups) + 2 * self.turns + newest + own)
