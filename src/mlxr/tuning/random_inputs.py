"""Random inputs of single launches.

Weights lie in so many buffers, used in turn, that the GPU's cache never holds what a launch reads; attention goes
through the layers of the arena for the same reason. Everything else is as in a step: metadata of a real batch,
activations.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Literal

import mlx.core as mx

from mlxr.compiler.artifact import ArenaGeometry, Artifact, DType, Phase, Plan, Value, layer_buffer
from mlxr.compiler.errors import RequestError
from mlxr.compiler.ir.ops.experts import Route
from mlxr.compiler.text import counted
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.binding import batch_arrays, batch_dims, shape_of
from mlxr.runtime.hosts.mlx.bindable import MIN_ELEMENTS, bindable, kernel_input
from mlxr.runtime.memory.fitting_arena import has_free_size

Input = Callable[[int], mx.array]
"""An input of a launch, by turn."""
_MOST_COPIES = 256
_EXPERT_TURNS = 16
_TRIED_TOKENS = 8192


def tried_arena(plan: Plan, context: int) -> ArenaGeometry:
    """The plan's arena, with room for no more than all sequences of so many tokens, or of 8192.

    Args:
        plan: of the artifact that is tried.
        context: most tokens of a sequence.
    """
    arena = plan.arena
    if not has_free_size(arena):
        return arena
    each = -(-max(context, plan.max_tokens, _TRIED_TOKENS) // arena.block_size)
    return arena.with_blocks(min(arena.num_blocks, arena.max_sequences * each))


def decode_batch(artifact: Artifact, sequences: int, context: int) -> Batch:
    """The metadata of a decode step: one new token in each sequence, `context` tokens with it.

    Raises:
        RequestError: the artifact does not hold so many.
        ArenaFullError: its arena has too few blocks.
    """
    return _batch(artifact, sequences, context, 1)


def prefill_batch(artifact: Artifact, tokens: int, rows: Literal["last", "all"] = "last") -> Batch:
    """The metadata of a step that begins one sequence with so many tokens; see `decode_batch` for errors."""
    return _batch(artifact, 1, tokens, tokens, rows)


def _batch(artifact: Artifact, sequences: int, context: int, new: int, rows: Literal["last", "all"] = "last") -> Batch:
    plan = artifact.plan
    if not (1 <= sequences <= plan.arena.max_sequences and new <= context <= plan.arena.context):
        raise RequestError(
            f"{counted(sequences, 'sequence')} of {context} tokens: the artifact holds {plan.arena.max_sequences} of "
            f"{plan.arena.context}"
        )
    pager = Pager.from_geometry(plan.arena)
    requests = []
    for _ in range(sequences):
        seq_id = pager.add_sequence()
        if context > new:
            pager.pass_over(seq_id, context - new)
        requests.append(BatchRequest(seq_id, [i % plan.vocab_size for i in range(new)], context - new, rows))
    return Batch.build(requests, pager, plan.query_tile).with_adapters


class RandomInputs:
    """Inputs of an artifact's launches; artifacts that differ in geometry alone share all of them."""

    def __init__(self, artifact: Artifact, cache_bytes: int, context: int = 1) -> None:
        """Allocates the arena.

        Args:
            artifact: whose launches are to be timed.
            cache_bytes: what the GPU's last cache holds.
            context: most tokens of a sequence in a batch; see `tried_arena`.

        Raises:
            ArenaError: the arena does not fit into this machine's memory.
        """
        self._cache_bytes = cache_bytes
        self._arena = Arena(tried_arena(artifact.plan, context))
        self._layer_buffers = {layer_buffer(layer) for layer in range(artifact.plan.num_layers)}
        self._layers = [mx.array([i] + [0] * 7, dtype=mx.uint32) for i in range(artifact.plan.num_layers)]
        self._weights = {weight.name: weight for weight in artifact.plan.weights}
        self._casts = {cast.name: cast for cast in artifact.plan.program("metal").casts}
        self._arrays: dict[tuple[DType, tuple[int, ...]], list[mx.array]] = {}
        graphs = [artifact.graph(phase.name) for phase in artifact.plan.program("metal").phases]
        self._experts = {
            op.outputs["experts"]: (_columns(graph.value(op.inputs["x"])), route)
            for graph in graphs
            for op, route in graph.ops_of(Route)
        }

    def is_weight(self, name: str) -> bool:
        """Whether the plan has a weight of this name, or a weight in another type."""
        return name in self._weights or name in self._casts

    def input(self, phase: Phase, batch: Batch, name: str, dtype: DType) -> Input:
        """An input by the plan's name for it.

        Args:
            phase: whose launch reads it.
            batch: what the step runs.
            name: of a weight, of the batch's metadata, of the arena, or of an activation.
            dtype: of the kernel's port.
        """
        arena, metadata = self._arena.stores, batch_arrays(batch)
        shapes = {buffer.name: buffer.shape for buffer in phase.buffers}
        if name in self._casts:
            cast = self._casts[name]
            return _cast(self.input(phase, batch, cast.weight, dtype), MLX_DTYPES[str(cast.dtype)])
        if name in self._weights:
            layout = self._weights[name].layout
            shape = (layout.size_bytes,) if layout.is_bytes else self._weights[name].shape
            return _in_turn(self._random(layout.dtype, shape, -(-4 * self._cache_bytes // layout.size_bytes)))
        if name in arena:
            return _in_turn([arena[name]])
        if name in metadata:
            return _in_turn([kernel_input(metadata[name])])
        if name in self._layer_buffers:
            return _in_turn(self._layers)
        if name not in shapes:  # a token of the arena: single launches need no order
            return _in_turn([mx.zeros((MIN_ELEMENTS,), dtype=mx.uint32)])
        shape = shape_of(shapes[name], batch_dims(batch))
        if name in self._experts:
            return _in_turn([self._choice(shape, *self._experts[name]) for _ in range(_EXPERT_TURNS)])
        return _in_turn(self._random(dtype, shape, 1))

    def _random(self, dtype: DType, shape: tuple[int, ...], copies: int) -> Sequence[mx.array]:
        """Arrays of random numbers, kept for later calls; several where they must push each other out of the cache."""
        arrays = self._arrays.setdefault((dtype, shape), [])
        count = 1 if copies <= 1 and dtype is not DType.U8 else max(2, min(copies, _MOST_COPIES))
        while len(arrays) < count:
            array = mx.random.randint(0, 64, shape) if dtype is DType.U8 else mx.random.normal(shape)
            arrays.append(bindable(array.astype(MLX_DTYPES[str(dtype)])))
            mx.eval(arrays[-1])
        return arrays[:count]

    def _choice(self, shape: tuple[int, ...], num_experts: int, route: Route) -> mx.array:
        """Different experts for each token: [tokens, top_k] i32; -1 for those of other ranks."""
        order = mx.argsort(mx.random.uniform(shape=(shape[0], num_experts)), axis=-1)
        chosen = order[:, : shape[1]].astype(mx.int32)
        if route.first_expert is not None and route.owned is not None:
            own = chosen - route.first_expert
            chosen = mx.where((own >= 0) & (own < route.owned), own, -1)
        chosen = bindable(chosen)
        mx.eval(chosen)
        return chosen


def _cast(source: Input, dtype: mx.Dtype) -> Input:
    """The input in another type, computed when it is first asked for, as hosts do when they load it."""

    @functools.cache
    def at(turn: int) -> mx.array:
        array = source(turn).astype(dtype)
        mx.eval(array)
        return array

    return at


def _columns(matrix: Value) -> int:
    columns = matrix.shape[1]
    assert isinstance(columns, int), "only rows are symbolic"
    return columns


def _in_turn(arrays: Sequence[mx.array]) -> Input:
    return lambda turn: arrays[turn % len(arrays)]
