"""The plan: a program for each target, and what all programs share."""

from collections.abc import Mapping

from mlxr.compiler.artifact.chosen_geometry import ChosenGeometry
from mlxr.compiler.artifact.padding import padded
from mlxr.compiler.artifact.program import Program
from mlxr.compiler.artifact.record import MemoryPlan
from mlxr.compiler.artifact.weight_plan import WeightPlan
from mlxr.compiler.errors import ArtifactError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.spec.record import Record


class Plan(Record):
    """Everything a host and the runtime need besides the weights themselves.

    Attributes:
        programs: by the names of their targets, of which there is at least one.
        chunk: how steps of prompts are filled up, and why `max_tokens` is what it is where the spec left it open.
        weights: every weight that a program binds.
        ignored_tensors: patterns of tensors in weight files that no weight is made of.
        arena_chosen: why the arena is contiguous or paged, where the spec left it open.
        query_tile: tokens of a tile of queries; batches are laid out with such tiles.
        whole_context: contexts of up to so many tokens are attended to in one launch in decode; all are in batches of
            as many sequences as the geometry calls many.
        max_tokens, max_rows: the largest batch, in tokens and in rows of logits.
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

    def __repr__(self) -> str:
        kernels = sum(len(program.kernels) for program in self.programs.values())
        return f"<Plan for {', '.join(self.programs)}: {kernels} kernels, {len(self.weights)} weights>"

    __str__ = __repr__

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that there is a program for."""
        return tuple(self.programs)

    @property
    def first(self) -> Program:
        """The first program, whose types the graphs have."""
        return next(iter(self.programs.values()))

    @property
    def arena(self) -> ArenaGeometry:
        """The arena of the first program; those of others differ in the type of the cache alone."""
        return self.first.arena

    @property
    def largest_memory(self) -> MemoryPlan:
        """What the program needs that needs most."""
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

    def with_program(self, target: str, **changes: object) -> "Plan":
        """The plan with other fields in the program of a target."""
        program = self.program(target).model_copy(update=changes)
        return self.model_copy(update={"programs": {**self.programs, target: program}})

    def padded_tokens(self, tokens: int) -> int:
        """How many tokens a step of prompts has once it is filled up; see `ChunkSizes.padding`."""
        return padded(tokens, self.chunk.sizes["chunk_padding"], self.max_tokens)

    @property
    def padded_sizes(self) -> tuple[int, ...]:
        """Every number of tokens that such a step may have, ascending; empty where nothing is filled up."""
        if not self.chunk.sizes["chunk_padding"]:
            return ()
        return tuple(dict.fromkeys(map(self.padded_tokens, range(1, self.max_tokens + 1))))
