"""Launch geometry: the sizes that a tuner may change without changing what is computed.

Each kind of launch has one record. Each size states its flat name for users (`matvec_outputs`), its limits, and the
values that the tuner tries. "MMA" means the matrix instructions of NVIDIA GPUs for 16 x 8 x 16 numbers.
"""

from dataclasses import dataclass

from mlxr.compiler.errors import PlanError
from mlxr.compiler.schedule.size_record import RowThreshold, SizeRecord, Values, Variants, size

MULTIPROCESSOR_THREADS = 2048
"""The most threads that an NVIDIA multiprocessor runs at once."""

_POWERS_TO_32 = (1, 2, 4, 8, 16, 32)
_OFF_ON = (0, 1)
BY_DIGITS = 2
"""`matvec_mma` of products of 8-bit numbers."""


@dataclass(frozen=True)
class OneRow(SizeRecord):
    """Projections of one row, as in decode of one sequence: each simdgroup takes some rows of the weight."""

    outputs: int = size("matvec_outputs", 4, one_of=_POWERS_TO_32, tuning=Values((1, 2, 4, 8, 16, 32)))
    """Weight rows per simdgroup. In gated projections half of them are gates."""
    simdgroups: int = size("matvec_simdgroups", 2, tuning=Values((1, 2, 4, 8, 16)))
    """Simdgroups per threadgroup."""
    split: int = size("matvec_split", 1, tuning=Values((1, 2, 4, 8)))
    """How many simdgroups share the columns of the same rows: a divisor of `simdgroups`."""
    unroll: int = size("matvec_unroll", 1, tuning=Values((1, 2, 4)))
    """Steps of the loop over columns whose loads are in flight at once. With MMA at most 4; q4_k and q5_k take four
    steps at once, so for them 1 means the same as 2."""
    threadgroups: int = size("matvec_threadgroups", 0, least=0, tuning=Values((0, 132, 264, 528)))
    """The most threadgroups, where a lane can keep its columns of x: each takes several tiles of rows one after the
    other; 0: each takes one."""
    stages: int = size("matvec_stages", 0, least=0, most=8, tuning=Values((0,)))
    """With MMA, pieces of the weight that a simdgroup copies to threadgroup memory ahead of what it multiplies, where
    rows divide evenly; 0: none. Then `threadgroups` counts, and gated projections may have 8 of each half. Products by
    experts have labels of their own for that, `experts_stream` and `experts_down_stream`."""
    wanted_kib: int = size("matvec_wanted_kib", 0, least=0, most=200, tuning=Values((0,)))
    """With MMA and stages, KiB after these pieces that come to the card's cache for a threadgroup before x is there."""
    leads: int = size("matvec_leads", 0, one_of=_OFF_ON, tuning=Values((0,)))
    """1: the launch after attention's output projection is let in when that one begins, not when its x is there."""
    mma: int = size(
        "matvec_mma",
        0,
        one_of=(*_OFF_ON, BY_DIGITS),
        tuning=Variants(
            (
                {"mma": 0, "outputs": 4, "simdgroups": 4, "split": 4, "unroll": 2},
                {"mma": 1, "outputs": 16, "simdgroups": 8, "split": 8, "unroll": 1},
            )
        ),
    )
    """1: uses MMA, for quantised weights. Then `outputs` is 16 or 32; in gated projections 16 of each half. 2: uses MMA
    of 8-bit numbers where a format can (q4_k, q6_k) and registers hold all that a simdgroup multiplies, else as 1. Then
    `outputs` is 16, 8 of each half in gated projections, all simdgroups share the columns, `threadgroups` counts, and
    `stages` are tiles that a threadgroup copies ahead."""

    def check_together(self) -> None:
        """The columns are shared evenly, and MMA has limits of its own."""
        if self.simdgroups % self.split:
            raise PlanError(
                f"geometry: matvec_split is {self.split}; expected a divisor of matvec_simdgroups, {self.simdgroups}"
            )
        if self.mma == BY_DIGITS and (self.outputs != 16 or self.split != self.simdgroups):
            raise PlanError(
                f"geometry: matvec_mma is 2 with matvec_outputs {self.outputs}, matvec_simdgroups {self.simdgroups} "
                f"and matvec_split {self.split}; expected 16 outputs, and all simdgroups to share the columns"
            )
        if self.mma and (self.outputs < 16 or self.unroll not in (1, 2, 4)):
            raise PlanError(
                f"geometry: matvec_mma is {self.mma} with matvec_outputs {self.outputs} and matvec_unroll "
                f"{self.unroll}; expected 0, or 1 with 16 or 32 outputs and 1, 2 or 4 steps"
            )


@dataclass(frozen=True)
class SeveralRows(SizeRecord):
    """Projections of a few rows: a tile of rows shares one read of the weight."""

    outputs: int = size("matmul_outputs", 4, one_of=_POWERS_TO_32, tuning=Values((1, 2, 4, 8)))
    """Weight rows per simdgroup, as in `OneRow`."""
    simdgroups: int = size("matmul_simdgroups", 2, tuning=Values((1, 2, 4, 8)))
    """Simdgroups per threadgroup."""
    tile: int = size("matmul_tile", 8, tuning=Values((2, 4, 8, 16)))
    """Input rows that share one read of the weight: at least 2. tile x outputs is at most 32, one lane per result."""
    shared: int = size("matmul_shared", 0, least=0, most=32)
    """Simdgroups that share the columns of weights of 16 and 32 bits in steps of up to 64 rows, 4 outputs and 4 rows a
    threadgroup, where columns divide evenly and registers hold them; 0: none do."""

    def check_together(self) -> None:
        """Each result of a tile has its own lane."""
        if self.tile < 2 or self.tile * self.outputs > 32:
            raise PlanError(
                f"geometry: matmul_tile {self.tile} x matmul_outputs {self.outputs} must be at most 32, one lane each, "
                "and a tile at least 2 rows"
            )


@dataclass(frozen=True)
class UnpackedTiles(SizeRecord):
    """Projections of many rows by quantised weights, which are unpacked into threadgroup memory."""

    min_rows: int = size("gemm_min_rows", 17, tuning=RowThreshold())
    """The fewest rows that are computed this way, 32 at once."""
    mma: int = size("gemm_mma", 0, one_of=_OFF_ON)
    """1: uses MMA, 64 rows at once, if activations have 16 bits."""


@dataclass(frozen=True)
class ExpertTiles(SizeRecord):
    """Products of many tokens by experts: the tokens of an expert share a read of its weight, as in `UnpackedTiles`."""

    min_rows: int = size("experts_min_rows", 8, least=0)
    """The fewest tokens that an expert has on average, from which steps are computed this way; 0: none are. Without MMA
    a tile costs as much as eight tokens by themselves, by count of instructions, however few it has."""
    mma_tokens: int = size("experts_mma_tokens", 0, least=0)
    """The fewest tokens of a decode step whose choices are multiplied with MMA, 8 of an expert at once, as in
    `MatrixTiles`; 0: each token is multiplied by itself. It needs 16-bit activations and quantised weights."""


@dataclass(frozen=True)
class MatrixTiles(SizeRecord):
    """Projections of several rows with MMA.

    They need 16-bit activations, and a weight of the same type or a quantised one.
    """

    min_rows: int = size("mma_min_rows", 0, least=0)
    """The fewest rows that are computed this way; 0: none are."""
    max_rows: int = size("mma_max_rows", 64)
    """The most rows that are computed this way."""
    simdgroups: int = size("mma_simdgroups", 8, most=14, reason="whose sums fit", tuning=Values((4, 6, 8, 12)))
    """Simdgroups that share the columns of a threadgroup's weight rows."""
    outputs: int = size("mma_outputs", 64, one_of=(16, 32, 64, 128))
    """Weight rows per threadgroup."""
    together: int = size("mma_together", 1, one_of=(1, 2, 4, 8))
    """With stages: threadgroups that share columns, on hosts that have them read each other's memory."""
    stages: int = size("mma_stages", 0, least=0, most=12)
    """Parts of columns of 16-bit weights and of x that are asked for ahead, in threadgroup memory; 0: none are. For
    `experts_codes` and `experts_down_codes`, blocks of q4_k and q6_k; a simdgroup has `outputs` rows then."""
    stage_kib: int = size("mma_stage_kib", 0, least=0, most=200)
    """Most KiB of threadgroup memory for stages: with many rows of x there are fewer; 0: no bound but the chip's."""
    wide_outputs: int = size("mma_wide_outputs", 0, one_of=(0, 32, 48, 64, 96, 112, 128, 192, 224))
    """With stages and 33 rows of x or more: weight rows per threadgroup; 0: as for fewer."""
    wide_simdgroups: int = size("mma_wide_simdgroups", 0, least=0, most=16, reason="whose sums fit")
    """Likewise, simdgroups."""
    wide_together: int = size("mma_wide_together", 0, one_of=(0, 1, 2, 4, 8))
    """Likewise, threadgroups that share columns."""
    wide_stages: int = size("mma_wide_stages", 0, least=0, most=12)
    """Likewise, parts of columns, which four simdgroups multiply together where they lie; 0: as for fewer rows. For
    `experts_prompts` and `experts_down_prompts`, blocks of q4_k and q6_k, of which a simdgroup has 16 rows then."""
    wide_pieces: int = size("mma_wide_pieces", 1, one_of=(1, 2))
    """Pieces of 64 columns that such a part has."""
    wide_rows: int = size("mma_wide_rows", 64, one_of=(16, 32, 64))
    """The smallest tile of rows of x that they multiply so, with the five sizes before."""
    threadgroups: int = size("mma_threadgroups", 0, least=0)
    """With stages and a quantised weight: about so many threadgroups, which take several tiles; 0: no stages."""

    def check_together(self) -> None:
        """Some number of rows is computed this way, unless that is turned off; a stage is filled beside another."""
        if self.min_rows > self.max_rows:
            raise PlanError(f"geometry: mma_min_rows {self.min_rows} must be at most mma_max_rows, {self.max_rows}")
        for name, stages in (("mma_stages", self.stages), ("mma_wide_stages", self.wide_stages)):
            if stages == 1:
                raise PlanError(f"geometry: {name} is 1; expected 0, or at least 2")


@dataclass(frozen=True)
class LibraryMatmul(SizeRecord):
    """Projections with MLX's matmul, on hosts that have MLX's ops."""

    min_rows: int = size("mlx_min_rows", 32, least=0, tuning=RowThreshold())
    """The fewest rows for which it multiplies by a weight of the activations' type; 0: it never does."""
    quantised_min_rows: int = size("mlx_quantised_min_rows", 0, least=0, tuning=RowThreshold(shared=True))
    """The fewest rows for which it multiplies by a quantised weight, unpacked before; 0: it never does."""
    unpack_unroll: int = size("unpack_unroll", 4)
    """Pieces of a weight that one thread unpacks, with all their loads in flight at once."""


@dataclass(frozen=True)
class ManyRows(SizeRecord):
    """Projections of more than one row: the ways to compute them, the rows that each takes, and their sizes."""

    several: SeveralRows = SeveralRows()
    unpacked: UnpackedTiles = UnpackedTiles()
    experts: ExpertTiles = ExpertTiles()
    matrix: MatrixTiles = MatrixTiles()
    library: LibraryMatmul = LibraryMatmul()


@dataclass(frozen=True)
class AttendWhole(SizeRecord):
    """Decode attention to a whole context in one launch, with threadgroups for each sequence and KV head."""

    simdgroups: int = size("attend_simdgroups", 8, tuning=Values((1, 2, 4, 8, 16)))
    """Simdgroups that share the context of one KV head."""
    heads: int = size("attend_heads", 0, least=0, tuning=Values((1, 2, 4, 8)))
    """The most query heads per threadgroup; 0: all heads of its KV head."""
    unroll: int = size("attend_unroll", 1, tuning=Values((1, 2, 4)))
    """Keys that a group of lanes loads and scores at once."""
    max_context: int = size("attend_whole", 0, least=0, tuning=Values((0, 256, 1024, 2048)))
    """Contexts up to this many tokens are not split; 0: up to the shortest partition."""
    mma: int = size("attend_mma", 0, one_of=_OFF_ON, tuning=Variants(({"mma": 0}, {"mma": 1})))
    """1: uses MMA, if activations and cache have one 16-bit type, heads have 64 or 128 elements, and a KV head has at
    most 8 query heads. Then `heads` and `unroll` have no effect."""
    together: int = size("attend_together", 1, one_of=(1, 2, 4, 8))
    """With MMA: threadgroups that share a context, and merge what they have if they can read each other's memory, as in
    launches of their own on NVIDIA's cards for data centres."""
    together_simdgroups: int = size("attend_together_simdgroups", 8)
    """With `together`: as `simdgroups`."""
    together_context: int = size("attend_together_context", 1024)
    """With `together`: as `max_context`."""


@dataclass(frozen=True)
class AttendMany(SizeRecord):
    """Decode attention of batches whose sequences alone fill the GPU: one launch, however long the contexts are."""

    min_sequences: int = size("attend_many", 0, least=0)
    """The fewest sequences that are computed this way, at least 2; 0: none are."""
    simdgroups: int = size("attend_many_simdgroups", 8)
    """As in `AttendWhole`."""
    heads: int = size("attend_many_heads", 0, least=0)
    """As in `AttendWhole`."""
    unroll: int = size("attend_many_unroll", 1)
    """As in `AttendWhole`."""
    mma: int = size("attend_many_mma", 0, one_of=_OFF_ON)
    """As in `AttendWhole`."""
    crowd: int = size("attend_crowd", 0, least=0)
    """With MMA: sequences from which threadgroups are so small that several are at work where one was; 0: none are."""
    crowd_simdgroups: int = size("attend_crowd_simdgroups", 4)
    """Simdgroups of such a threadgroup."""
    crowd_resident: int = size("attend_crowd_resident", 1)
    """Such threadgroups that a multiprocessor must have registers for at once."""

    def check_together(self) -> None:
        """One sequence is not many."""
        if self.min_sequences == 1:
            raise PlanError("geometry: attend_many is 1; expected 0, or at least 2 sequences")


@dataclass(frozen=True)
class AttendPartition(SizeRecord):
    """Decode attention to a part of a long context (split-KV): a second launch merges the parts."""

    length: int = size("partition", 1024, tuning=Values((32, 64, 128, 256, 512, 1024, 2048, 4096)))
    """Tokens in the shortest partition."""
    most: int = size("partitions", 32, tuning=Values((8, 16, 32, 64)))
    """The most partitions of a context; longer contexts have longer partitions."""
    simdgroups: int = size("partition_simdgroups", 0, least=0, tuning=Values((2, 4, 8)))
    """As in `AttendWhole`; 0: the same as there."""
    heads: int = size("partition_heads", 0, least=0, tuning=Values((1, 2, 4, 8)))
    """As in `AttendWhole`; 0: the same as there."""
    unroll: int = size("partition_unroll", 0, least=0, tuning=Values((1, 2, 4)))
    """As in `AttendWhole`; 0: the same as there."""
    mma: int = size("partition_mma", 0, one_of=_OFF_ON, tuning=Variants(({"mma": 0}, {"mma": 1})))
    """As in `AttendWhole`."""
    mma_simdgroups: int = size("partition_mma_simdgroups", 0, least=0)
    """With MMA: as `simdgroups`; 0: the same."""


@dataclass(frozen=True)
class DecodeAttention(SizeRecord):
    """Attention of one new token of each sequence."""

    whole: AttendWhole = AttendWhole()
    many: AttendMany = AttendMany()
    partition: AttendPartition = AttendPartition()


@dataclass(frozen=True)
class AttendTile(SizeRecord):
    """Attention of a tile of queries in a prefill step; tiles shrink until they fit threadgroup memory."""

    rows: int = size("prefill_rows", 32, tuning=Values((16, 32, 64)))
    """Rows per threadgroup; a row is one query head of one token."""
    keys: int = size("prefill_keys", 32, one_of=(4, 8, 16, 32), reason="a lane each", tuning=Values((8, 16, 32)))
    """Keys per tile."""
    rows_per_simdgroup: int = size("prefill_rows_per_simdgroup", 4, tuning=Values((2, 4, 8, 16)))
    """Rows per simdgroup."""
    mma: int = size(
        "prefill_mma", 0, one_of=(0, 1, 2), tuning=Variants(({"mma": 0, "rows": 32}, {"mma": 1, "rows": 64}))
    )
    """1: uses MMA, if activations and cache have one 16-bit type and heads have 64, 128, 192, 256 ... elements. Then
    `rows` is a multiple of 16 up to 128. With 64 and 128 elements, `keys` and `rows_per_simdgroup` have no effect. With
    more, `rows` shrink until registers suffice, tiles have 16 or 32 keys, and 16 rows of queries are shared by
    16 / `rows_per_simdgroup` simdgroups, or so many that each has at most 128 elements of a head. 2: with 64 and 128
    elements and 64 or 128 rows, four simdgroups share what an instruction reads, unless sums must not depend on the
    batch."""
    parts: int = size("prefill_parts", 2, one_of=(1, 2))
    """With `mma` 2: 16-bit numbers that make a query, and a weight. Two have the errors of f32, one of its type."""

    def check_together(self) -> None:
        """MMA takes 16 rows at a time."""
        if self.mma and (self.rows % 16 or self.rows > 128):
            raise PlanError(
                f"geometry: prefill_rows is {self.rows} with prefill_mma; expected a multiple of 16 up to 128"
            )


@dataclass(frozen=True)
class LibraryAttention(SizeRecord):
    """Attention of one sequence with MLX's op, on hosts that have MLX's ops."""

    min_tokens: int = size("mlx_min_tokens", 0, least=0)
    """The fewest new tokens of a step that it computes; 0: it computes none."""
    min_context: int = size("mlx_min_context", 0, least=0)
    """The fewest tokens of context, the new ones included, of a step that it computes."""


@dataclass(frozen=True)
class PrefillAttention(SizeRecord):
    """Attention in a prefill step."""

    tile: AttendTile = AttendTile()
    library: LibraryAttention = LibraryAttention()


@dataclass(frozen=True)
class DeltaChunks(SizeRecord):
    """The gated delta rule in a prefill step."""

    min_tokens: int = size("delta_chunk_tokens", 0, least=0)
    """The fewest tokens of a step of one sequence that are taken by chunks with MMA, if activations are bf16 and heads
    suit it; steps of 2 to 8 sequences have four times as many, of 9 to 16 eight times, and so on by doubling. Other
    steps go token by token; 0: all do."""


@dataclass(frozen=True)
class ChunkSizes(SizeRecord):
    """Sizes of whole prefill steps."""

    tokens: int = size("chunk_tokens", 512)
    """The most prompt tokens of a step, if the spec leaves it open."""
    padding: int = size("chunk_padding", 0, least=0)
    """Hosts whose kernels MLX launches pad a step to one of a few numbers of tokens, so that they meet few shapes:
    powers of two up to this size, then multiples of this size up to 24 times it, then of an eighth of the next lower
    power of two, or of this size if that is larger; 0: no padding."""
    last_rows: int = size("chunk_last_rows", 0, one_of=(0, 1))
    """1: what follows the last attention is computed only where logits are wanted, which takes a few kernels more."""


@dataclass(frozen=True)
class ArenaSizes(SizeRecord):
    """The KV arena."""

    contiguous_context: int = size("contiguous_context", 4096, least=0)
    """Up to this context, in tokens, `mode: auto` gives a single sequence a contiguous arena; 0: never."""


@dataclass(frozen=True)
class StepKernelSizes(SizeRecord):
    """A decode step that host cuda runs as one kernel."""

    threads: int = size(
        "step_threads",
        0,
        least=0,
        most=1024,
        multiple_of=32,
        tuning=Values((0, 256, 384, 512, 640, 768, 1024)),
    )
    """Threads per block; 0: each launch is a kernel of its own."""
    threads_with_sums: int = size("step_rank_threads", 0, least=0, most=1024, multiple_of=32)
    """The same, where the model is divided among tensor ranks and `threads` is 0."""
    sequences: int = size("step_sequences", 1)
    """The most sequences of such a step."""
    blocks: int = size("step_blocks", 1)
    """Blocks that a multiprocessor runs at once; this bounds their registers."""

    def check_together(self) -> None:
        """The blocks fit on a multiprocessor."""
        if self.threads * self.blocks > MULTIPROCESSOR_THREADS:
            raise PlanError(
                f"geometry: step_threads {self.threads} x step_blocks {self.blocks} must be at most "
                f"{MULTIPROCESSOR_THREADS}, the threads of a multiprocessor"
            )


@dataclass(frozen=True)
class Geometry(SizeRecord):
    """The sizes of all launches of one site."""

    one_row: OneRow = OneRow()
    many_rows: ManyRows = ManyRows()
    decode_attention: DecodeAttention = DecodeAttention()
    prefill_attention: PrefillAttention = PrefillAttention()
    delta: DeltaChunks = DeltaChunks()
    chunk: ChunkSizes = ChunkSizes()
    arena: ArenaSizes = ArenaSizes()
    step: StepKernelSizes = StepKernelSizes()

    @classmethod
    def of(cls, **sizes: int) -> "Geometry":
        """The default geometry with these sizes changed, by flat name: `Geometry.of(partition=16)`.

        Raises:
            PlanError: no kernel supports these sizes.
        """
        unknown = set(sizes) - set(cls.names())
        assert not unknown, f"the geometry has no {', '.join(sorted(unknown))}"
        return cls().changed(sizes)


USUAL_GEOMETRY = Geometry()
"""The default of all sizes."""
