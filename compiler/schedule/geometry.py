"""Launch geometry: the numbers that a tuner may change without changing what is computed."""

from dataclasses import dataclass, fields

from mlxr.compiler.errors import PlanError

MULTIPROCESSOR_THREADS = 2048
"""Threads that an NVIDIA multiprocessor runs at once, at most."""


@dataclass(frozen=True)
class Geometry:
    """Sizes of threadgroups and tiles.

    Attributes:
        matvec_outputs: weight rows of a simdgroup in one-row projections (gated ones keep this many of each half).
        matvec_simdgroups: simdgroups of a threadgroup there.
        matvec_split: how many of them share the columns of their rows.
        matvec_unroll: steps of a simdgroup's loop over columns whose loads are on the way at once.
        matvec_mma: 1: by matrix instructions, for quantised weights on chips that have them for 16 x 8 x 16 numbers of
            f16; matvec_outputs is 16 or 32 then (gated ones: of each half 16), matvec_unroll at most 4 (for q4_k
            and q5_k, which take four steps at once, 1 means as much as 2).
        matmul_outputs, matmul_simdgroups: the same for several rows.
        matmul_tile: input rows that share one read of the weight; tile x outputs is at most 32, one lane each.
        gemm_min_rows: rows from which quantised weights are unpacked into threadgroup memory, for 32 rows at once.
        gemm_mma: 1: by matrix instructions there, for 64 rows at once, where activations are of 16 bits.
        mma_min_rows, mma_max_rows: rows from and up to which a projection is made by matrix instructions, where
            activations are of 16 bits, and the weight of their type or quantised; mma_min_rows 0: never.
        mma_simdgroups: simdgroups there that share the columns of a threadgroup's rows of the weight.
        mma_outputs: these rows, of quantised weights: 16, 32 or 64 (of others they are 64).
        attend_simdgroups: simdgroups that share the context of one KV head in decode.
        attend_heads: most query heads of a threadgroup there; 0: all on its KV head.
        attend_unroll: keys of a lane group that are loaded and scored at once.
        attend_whole: contexts up to this long are not split; 0: as long as the shortest partition.
        attend_mma: 1: by matrix instructions there, where activations and cache are of one 16-bit type, heads of 64 or
            128 elements and at most 8 on a KV head: then attend_heads and attend_unroll mean nothing.
        attend_many: sequences (two or more) from which decode attention is one launch whatever the contexts, since
            there are threadgroups enough; 0: never.
        attend_many_simdgroups, attend_many_heads, attend_many_unroll, attend_many_mma: as in attend_, there.
        partition: positions of the shortest split-KV partition.
        partitions: most partitions of a context; longer ones have longer partitions.
        partition_simdgroups, partition_heads, partition_unroll: as in attend_, of a partition; 0: the same.
        partition_mma: as in attend_, of a partition.
        prefill_rows: (token, query head) rows of a prefill attention threadgroup, if threadgroup memory allows.
        prefill_keys: keys of one of its tiles, likewise.
        prefill_rows_per_simdgroup: rows of one simdgroup there.
        prefill_mma: 1: by matrix instructions there, where activations and cache are of one 16-bit type and heads of 64
            or 128 elements: then prefill_rows are a multiple of 16 up to 128, and the other two mean nothing.
        mlx_min_rows: rows from which hosts that have MLX's ops give it a projection whose weight has the activations'
            type; 0: never.
        mlx_quantised_min_rows: the same where the weight is quantised, and is unpacked for MLX; 0: never.
        unpack_unroll: pieces that a thread unpacks for it, whose loads are on the way at once.
        mlx_min_tokens: tokens of one sequence from which they give it attention; 0: never.
        mlx_min_context: contexts from which they do that, with those tokens.
        chunk_tokens: most prompt tokens of a step, where the spec leaves it open.
        chunk_padding: hosts whose kernels MLX launches fill a step of prompts up to one of a few numbers of tokens, so
            that they meet no new shapes: powers of two up to this, then steps of this or of an eighth of the next lower
            power of two, whichever is more; 0: they fill nothing up.
        contiguous_context: context up to which `mode: auto` gives one sequence a contiguous arena; 0: never.
        step_threads: threads of a block where host cuda runs a decode step as one kernel; 0: a launch for each kernel.
        step_sequences: most sequences of a decode step that is one kernel.
        step_blocks: blocks of it that a multiprocessor holds at once, which bounds their registers.
        step_prefetch: KiB of the next launch's weights that each block asks for while it waits for the others; 0: none.
    """

    matvec_outputs: int = 4
    matvec_simdgroups: int = 2
    matvec_split: int = 1
    matvec_unroll: int = 1
    matvec_mma: int = 0
    matmul_outputs: int = 4
    matmul_simdgroups: int = 2
    matmul_tile: int = 8
    gemm_min_rows: int = 17
    gemm_mma: int = 0
    mma_min_rows: int = 0
    mma_max_rows: int = 64
    mma_simdgroups: int = 8
    mma_outputs: int = 64
    attend_simdgroups: int = 8
    attend_heads: int = 0
    attend_unroll: int = 1
    attend_whole: int = 0
    attend_mma: int = 0
    attend_many: int = 0
    attend_many_simdgroups: int = 8
    attend_many_heads: int = 0
    attend_many_unroll: int = 1
    attend_many_mma: int = 0
    partition: int = 1024
    partitions: int = 32
    partition_simdgroups: int = 0
    partition_heads: int = 0
    partition_unroll: int = 0
    partition_mma: int = 0
    prefill_rows: int = 32
    prefill_keys: int = 32
    prefill_rows_per_simdgroup: int = 4
    prefill_mma: int = 0
    mlx_min_rows: int = 32
    mlx_quantised_min_rows: int = 0
    unpack_unroll: int = 4
    mlx_min_tokens: int = 0
    mlx_min_context: int = 0
    chunk_tokens: int = 512
    chunk_padding: int = 0
    contiguous_context: int = 4096
    step_threads: int = 0
    step_sequences: int = 1
    step_blocks: int = 1
    step_prefetch: int = 0

    def __post_init__(self) -> None:
        """Refuses sizes that no kernel is made for.

        Raises:
            PlanError: naming the size and what it may be.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.default == 0 or field.name.startswith(("mlx_", "contiguous_")) else 1
            if value < least:
                raise PlanError(f"geometry: {field.name} is {value}; expected at least {least}")
        for name in ("matvec_outputs", "matmul_outputs"):
            if getattr(self, name) not in (1, 2, 4, 8, 16, 32):
                raise PlanError(f"geometry: {name} is {getattr(self, name)}; expected 1, 2, 4, 8, 16 or 32")
        if self.matvec_simdgroups % self.matvec_split:
            raise PlanError(
                f"geometry: matvec_split is {self.matvec_split}; expected a divisor of matvec_simdgroups, "
                f"{self.matvec_simdgroups}"
            )
        for name in ("gemm_mma", "attend_mma", "attend_many_mma", "partition_mma", "prefill_mma"):
            if getattr(self, name) > 1:
                raise PlanError(f"geometry: {name} is {getattr(self, name)}; expected 0 or 1")
        if self.attend_many == 1:
            raise PlanError("geometry: attend_many is 1; expected 0, or at least 2 sequences")
        if self.mma_min_rows > self.mma_max_rows:
            raise PlanError(
                f"geometry: mma_min_rows {self.mma_min_rows} must be at most mma_max_rows, {self.mma_max_rows}"
            )
        if self.mma_outputs not in (16, 32, 64):
            raise PlanError(f"geometry: mma_outputs is {self.mma_outputs}; expected 16, 32 or 64")
        if not 1 <= self.mma_simdgroups <= 14:
            raise PlanError(f"geometry: mma_simdgroups is {self.mma_simdgroups}; expected 1 to 14, whose sums fit")
        if self.matvec_mma and (self.matvec_mma > 1 or self.matvec_outputs < 16 or self.matvec_unroll not in (1, 2, 4)):
            raise PlanError(
                f"geometry: matvec_mma is {self.matvec_mma} with matvec_outputs {self.matvec_outputs} and "
                f"matvec_unroll {self.matvec_unroll}; expected 0, or 1 with 16 or 32 outputs and 1, 2 or 4 steps"
            )
        if self.matmul_tile < 2 or self.matmul_tile * self.matmul_outputs > 32:
            raise PlanError(
                f"geometry: matmul_tile {self.matmul_tile} x matmul_outputs {self.matmul_outputs} must be at most 32, "
                "one lane each, and a tile at least 2 rows"
            )
        if self.step_threads % 32 or self.step_threads > 1024:
            raise PlanError(f"geometry: step_threads is {self.step_threads}; expected a multiple of 32 up to 1024")
        if self.step_threads * self.step_blocks > MULTIPROCESSOR_THREADS:
            raise PlanError(
                f"geometry: step_threads {self.step_threads} x step_blocks {self.step_blocks} must be at most "
                f"{MULTIPROCESSOR_THREADS}, the threads of a multiprocessor"
            )
        if self.prefill_mma and (self.prefill_rows % 16 or self.prefill_rows > 128):
            raise PlanError(
                f"geometry: prefill_rows is {self.prefill_rows} with prefill_mma; expected a multiple of 16 up to 128"
            )
        if self.prefill_keys not in (4, 8, 16, 32):
            raise PlanError(f"geometry: prefill_keys is {self.prefill_keys}; expected 4, 8, 16 or 32, a lane each")
