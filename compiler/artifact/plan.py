"""The plan: a program for each target, and the facts that all programs share."""

from collections.abc import Mapping

from mlxr.compiler.artifact.kernel_entry import ChosenGeometry
from mlxr.compiler.artifact.parallel.rank_plan import RankPlan
from mlxr.compiler.artifact.program import MemoryPlan, Program
from mlxr.compiler.artifact.weight_plan import WeightPlan
from mlxr.compiler.errors import ArtifactError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.spec.record import Record

_SMALLEST_STEP = 8
_MOST_STEPS = 24
"""Of 32 tokens: 544 and 672 take 3 to 9 % less than 576 and 704 (bf16, H200)."""


class Plan(Record):
    """Everything that a host and the runtime need besides the weights themselves.

    Attributes:
        programs: the program of each target, by the target's name; there is at least one.
        chunk: how hosts pad prefill steps, and the reason for `max_tokens` if the spec leaves it open.
        weights: every weight that a program binds.
        ignored_tensors: name patterns of tensors in weight files that the model does not use.
        arena_chosen: why the arena is contiguous or paged; None if the spec or its limits decide.
        query_tile: tokens in a tile of queries; batches are laid out in such tiles.
        whole_context: the longest context, in tokens, that decode attends to in one launch. In batches of many
            sequences (see `AttendMany`) it does so with any context.
        max_tokens, max_rows: the largest batch, in tokens and in rows of logits.
        hidden_size: columns of the rows that a step gives in place of logits; None: it gives logits.
        whole_prompts: whether a step reads whole prompts and keeps nothing of them: those of an encoder.
        rank: which part of a model this is; None: all of it.
        all_weights: of a part, the weights of the whole model, with which files are compared; else empty.
    """

    programs: Mapping[str, Program]
    chunk: ChosenGeometry
    weights: tuple[WeightPlan, ...]
    ignored_tensors: tuple[str, ...]
    arena_chosen: ChosenGeometry | None = None
    vocab_size: int
    num_layers: int
    query_tile: int
    whole_context: int
    max_tokens: int
    max_rows: int
    hidden_size: int | None = None
    whole_prompts: bool = False
    rank: RankPlan | None = None
    all_weights: tuple[WeightPlan, ...] = ()

    def __repr__(self) -> str:
        kernels = sum(len(program.kernels) for program in self.programs.values())
        return f"<Plan for {', '.join(self.programs)}: {kernels} kernels, {len(self.weights)} weights>"

    __str__ = __repr__

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that have a program."""
        return tuple(self.programs)

    @property
    def first(self) -> Program:
        """The program of the leading target, whose types the graphs have."""
        return next(iter(self.programs.values()))

    @property
    def arena(self) -> ArenaGeometry:
        """The arena of the leading program; other programs' arenas differ only in the type of the cache."""
        return self.first.arena

    @property
    def largest_memory(self) -> MemoryPlan:
        """The memory plan of the program that needs the most."""
        return max((program.memory for program in self.programs.values()), key=lambda memory: memory.total_bytes)

    def program(self, target: str) -> Program:
        """The program of a target.

        Raises:
            ArtifactError: the artifact was compiled without that target.
        """
        try:
            return self.programs[target]
        except KeyError:
            raise ArtifactError(
                f"the artifact has no target {target}; compile it with mlxr-compile --target {target}"
            ) from None

    @property
    def output_width(self) -> int:
        """Columns of what a step gives: logits, or hidden rows."""
        return self.vocab_size if self.hidden_size is None else self.hidden_size

    @property
    def is_part(self) -> bool:
        """Whether it is for a part of a model, which exchanges rows with the others."""
        return self.rank is not None

    @property
    def own_columns(self) -> int:
        """Columns of what a step gives that its own program makes, where it is one of those of the last stage."""
        if self.rank is None:
            return self.output_width
        begin, end = self.rank.result_bounds[self.rank.tensor_rank :][:2]
        return end - begin

    def with_program(self, target: str, **changes: object) -> "Plan":
        """A plan with some fields of one target's program changed."""
        program = self.program(target).model_copy(update=changes)
        return self.model_copy(update={"programs": {**self.programs, target: program}})

    def padded_tokens(self, tokens: int) -> int:
        """How many tokens a prefill step has once it is padded; see `ChunkSizes.padding`."""
        return padded(tokens, self.chunk.sizes["chunk_padding"], self.max_tokens)

    @property
    def pads(self) -> bool:
        """Whether prefill steps are padded."""
        return self.chunk.sizes["chunk_padding"] > 0

    @property
    def padded_sizes(self) -> tuple[int, ...]:
        """Every number of tokens that a padded step may have, ascending; empty if nothing is padded."""
        if not self.pads:
            return ()
        return tuple(dict.fromkeys(map(self.padded_tokens, range(1, self.max_tokens + 1))))


def padded(tokens: int, padding: int, most: int) -> int:
    """The padded size of a step: the next size that `chunk_padding` of the geometry allows, at most `most`."""
    if not padding:
        return tokens
    if tokens <= padding:
        size = _SMALLEST_STEP
        while size < min(tokens, padding):
            size *= 2
        return min(size, most)
    step = padding if tokens <= _MOST_STEPS * padding else max(padding, 1 << (tokens - 1).bit_length() - 4)
    return min(-(-tokens // step) * step, most)
