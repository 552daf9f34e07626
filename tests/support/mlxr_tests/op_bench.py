"""Runs single ops of an artifact: its kernels on the host of `kernel_host`, and the op's reference, on the same inputs.

The arena starts as NaN, with random history in the slots of each sequence's earlier tokens, so a kernel that reads any
other slot computes NaN. Everything that an op writes is compared with the reference; outside the slots of the new
tokens, every bit must be unchanged.
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import Artifact, Op, OpGraph, Phase, PhaseName, Value, layer_buffer
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.ops.attention import RopeAttention, RopeWriteAttention
from mlxr.compiler.ir.ops.cache import RopeCacheWrite
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.binding import batch_arrays, batch_dims, grid_of, shape_of
from mlxr.runtime.hosts.mlx_ops import arena_layer, evaluate
from mlxr.runtime.hosts.sim.kernel import SimBuffer
from mlxr_tests.arenas import check_arena, copy_arena, copy_slots, nan_arena, snapshot, write_slots
from mlxr_tests.format_planes import random_buffer
from mlxr_tests.kernel_host import load_kernel, on_cpu
from mlxr_tests.repetition import varied
from mlxr_tests.specs import floats, random_array
from mlxr_tests.tolerances import SUM_ERROR, Mismatch, check_op

_NUMPY_DTYPES = {"i32": np.int32, "f32": np.float32, "f16": np.float16, "bf16": np.uint16, "u32": np.uint32}
_GRAPH_INPUTS = {"token_ids": "tokens"}
_ROUNDED_HEADS = 4e-3
_FUSED = "rope_write_attention"
_WRITERS = (_FUSED, "rope_cache_write", "latent_write", "latent_norm_write")


def scatter(pager: Pager) -> None:
    """Shuffles the free list through the pager's own interface: later tables are neither ascending nor adjacent."""
    if pager.contiguous:
        return
    seq_ids = [pager.add_sequence() for _ in range(pager.max_sequences)]
    grown = True
    while grown:
        grown = False
        for seq_id in seq_ids:
            if pager.length(seq_id) < pager.context and pager.can_append_all([(seq_id, 1)]):
                pager.append(seq_id, min(pager.block_size, pager.context - pager.length(seq_id)))
                grown = True
    for seq_id in seq_ids:
        pager.free(seq_id)
    pager.take_copies()


class OpBench:
    """An artifact's kernels with a pager and two arenas of the same content: sim's and the reference's.

    Args:
        artifact: the artifact.
        seed: seed of all random numbers.
        scale: size of the activations that ops read.
        sum_error: see the tolerance table; larger than its default if large numbers cancel.

    Attributes:
        launches: number of launches by kernel label.
    """

    @on_cpu
    def __init__(self, artifact: Artifact, seed: int = 0, *, scale: float = 1.0, sum_error: float = SUM_ERROR) -> None:
        self.scale = scale
        self.sum_error = sum_error
        self.launches: Counter[str] = Counter()
        self.artifact = artifact
        self.plan = artifact.plan
        self.rng = np.random.default_rng(varied(seed))
        self.arena = nan_arena(Arena(self.plan.arena))
        self.reference_arena = nan_arena(Arena(self.plan.arena))
        self.weights = {weight.name: weight for weight in self.plan.weights}
        self.buffers: dict[str, mx.array] = {}
        self.pager = Pager.from_geometry(self.plan.arena)
        scatter(self.pager)
        self._graph = functools.cache(artifact.graph)
        self._scratch: dict[str, SimBuffer] = {}

    @on_cpu
    def sequences(self, *lengths: int) -> list[int]:
        """Adds sequences with this many tokens of random K and V each, and returns their ids."""
        seq_ids = [self.pager.add_sequence() for _ in lengths]
        for seq_id, length in zip(seq_ids, lengths, strict=True):
            if length:
                write_slots(self.arena, self.pager.append(seq_id, length), self.rng)
        self.pager.take_copies()
        copy_arena(self.arena, self.reference_arena)
        return seq_ids

    @on_cpu
    def clear(self, seq_ids: Sequence[int]) -> None:
        """Frees sequences and makes all slots NaN again."""
        for seq_id in seq_ids:
            self.pager.free(seq_id)
        nan_arena(self.arena)
        nan_arena(self.reference_arena)

    def batch(self, parts: Sequence[tuple[int, int]], rows: Any = "last") -> Batch:
        """A batch with the next tokens of sequences: (sequence, number of tokens)."""
        requests = [
            BatchRequest(s, self.rng.integers(0, self.plan.vocab_size, n).tolist(), self.pager.length(s), rows)
            for s, n in parts
        ]
        batch = Batch.build(requests, self.pager, self.plan.query_tile)
        assert not self.pager.take_copies(), "no forks here"
        return batch

    @on_cpu
    def run(self, phase_name: PhaseName, ops: Sequence[str], batch: Batch) -> dict[str, "np.ndarray[Any, Any]"]:
        """Runs ops in order on both sides, checks each op's results and the arena, and returns sim's results."""
        phase, graph = self.plan.first.phase(phase_name), self._graph(phase_name)
        dims = batch_dims(batch)
        sim: dict[str, np.ndarray[Any, Any]] = {}
        self._scratch.clear()
        reference: dict[str, mx.array] = {}
        token = np.full(8, 7, dtype=np.uint32)
        for op in (graph.op(name) for name in ops):
            for port, name in op.inputs.items():
                if name not in reference and port == "experts":
                    reference[name] = self._choices(op, dims)
                elif name not in reference:
                    reference[name] = self._input(graph.value(name), batch, dims)
            for name in op.outputs.values():
                if graph.value(name).role == "activation":
                    sim[name] = _poisoned(graph.value(name), dims)
            buffers = self._buffers(op, phase, graph, batch, sim, reference)
            buffers[op.inputs.get("token", "")] = SimBuffer.of(token, writable=False, name="token")
            token_out = np.zeros(8, dtype=np.uint32)
            buffers[op.outputs.get("token", "")] = SimBuffer.of(token_out, writable=True, name="token_out")
            before = snapshot(self.arena)
            self._launch(op, phase, buffers, dims)
            inputs = {port: reference[name] for port, name in op.inputs.items()}
            place = arena_layer(op, self.reference_arena)
            inputs = _normed(op, inputs)
            write, attention = _parts_of(op)
            outputs = evaluate(write, inputs, place)
            if "token" in op.outputs:
                if (token_out != token + 1).any():
                    raise Mismatch(f"{op.name}: token {token.tolist()} became {token_out.tolist()}")
                token = token_out
            written = {op.layer: set(batch.slots.tolist())} if op.kind in _WRITERS else {}
            check_arena(self.arena, before, self.reference_arena, written)
            # An element may have been rounded the other way, so later readers are compared on the same arena.
            copy_slots(self.arena, self.reference_arena, written)
            if attention is not None:
                inputs["query_start"] = mx.arange(dims["seqs"] + 1)
                outputs |= evaluate(attention, inputs, place)
            reference |= {name: outputs[port] for port, name in op.outputs.items()}
            for name in op.outputs.values():
                if name in sim:
                    dtype = str(graph.value(name).dtype)
                    got, want = _floats(sim[name], dtype), floats(reference[name])
                    if dtype != "i32":
                        check_op(op.name, got, want, dtype, sum_error=self._sum_error(op, dtype))
                    elif (got != want).any():
                        raise Mismatch(f"{op.name}: {name} is {got.tolist()}, expected {want.tolist()}")
        return {name: _floats(array, str(graph.value(name).dtype)) for name, array in sim.items()}

    def _sum_error(self, op: Op, dtype: str) -> float:
        """Heads that an op normalises are rounded in between, some the other way."""
        rounds = isinstance(op.attrs, RopeWriteAttention) and op.attrs.norm_before is not None and dtype != "f32"
        return max(self.sum_error, _ROUNDED_HEADS if rounds else 0.0)

    def _input(self, value: Value, batch: Batch, dims: Mapping[Any, int]) -> mx.array:
        if value.role == "input":
            return mx.array(getattr(batch, _GRAPH_INPUTS.get(value.name, value.name)))
        if value.role == "constant":
            return mx.array(value.data)
        if value.role == "store":
            stores = self.reference_arena.stores
            return stores[value.name if value.name in stores else f"{value.name[0]}_arena"]
        if value.role == "token":
            return self.reference_arena.token
        if value.role == "weight" and self.weights[value.name].layout.dtype == "u8":
            self.buffers[value.name], numbers = random_buffer(self.rng, self.weights[value.name])
            return numbers
        shape = shape_of(value.shape, dims)
        scale = self.scale if value.role == "activation" else 1.0
        if value.role == "weight" and len(shape) == 2 and value.name != "embedding":
            scale = shape[1] ** -0.5
        return random_array(self.rng, shape, str(value.dtype), scale)

    def _choices(self, op: Op, dims: Mapping[Any, int]) -> mx.array:
        """Randomly chosen experts; each token's are all different."""
        num_experts, top_k = op.attrs.num_experts, op.attrs.top_k
        orders = [self.rng.permutation(num_experts)[:top_k] for _ in range(dims["tokens"])]
        return mx.array(np.array(orders, dtype=np.int32))

    def _buffers(
        self,
        op: Op,
        phase: Phase,
        graph: OpGraph,
        batch: Batch,
        sim: Mapping[str, "np.ndarray[Any, Any]"],
        reference: Mapping[str, mx.array],
    ) -> dict[str, SimBuffer]:
        buffers = {n: SimBuffer.of(array, writable=False, name=n) for n, array in batch_arrays(batch).items()}
        for name in op.inputs.values():
            if name in sim:
                buffers[name] = SimBuffer.of(sim[name], writable=False, name=name)
            elif graph.value(name).role in ("weight", "activation"):
                buffers[name] = SimBuffer.of(self.buffers.get(name, reference[name]), writable=False, name=name)
        for made in self.plan.first.casts:
            if made.weight in buffers:
                array = mx.contiguous(reference[made.weight].astype(MLX_DTYPES[str(made.dtype)]))
                mx.eval(array)
                buffers[made.name] = SimBuffer.of(array, writable=False, name=made.name)
        read = (name for launch in phase.launches if launch.op == op.name for name in launch.inputs)
        for name in reference.keys() & set(read) - buffers.keys():  # of ops before
            buffers[name] = SimBuffer.of(reference[name], writable=False, name=name)
        for name in op.outputs.values():
            if name in sim:
                buffers[name] = SimBuffer.of(sim[name], writable=True, name=name)
        for scratch in phase.buffers:
            if scratch.name.startswith(op.name + ".") and scratch.name not in buffers:
                array = np.full(shape_of(scratch.shape, batch_dims(batch)), np.nan, dtype=np.float32)
                self._scratch[scratch.name] = SimBuffer.of(array, writable=True, name=scratch.name)
        buffers |= self._scratch  # those of earlier ops, too: a later one may read them
        if op.layer is not None:
            layer = np.array([op.layer] + [0] * 7, dtype=np.uint32)
            buffers[layer_buffer(op.layer)] = SimBuffer.of(layer, writable=False, name="layer")
        if op.attrs.accesses:
            stores = self.arena.stores.items()
            buffers |= {name: SimBuffer.of(array, writable=True, name=name) for name, array in stores}
        return buffers

    def _launch(self, op: Op, phase: Phase, buffers: Mapping[str, SimBuffer], dims: Mapping[Any, int]) -> None:
        launched = 0
        for launch in (one for one in phase.launches if one.op == op.name):
            grid = grid_of(launch, dims)
            if grid is None:
                continue
            num_threads = self.plan.first.kernel(launch.kernel).threads
            kernel = load_kernel(self.artifact.kernel_text(launch.kernel), launch.kernel, num_threads)
            bound = [buffers[name] for name in (*launch.inputs, *launch.outputs)]
            kernel.launch(bound, grid, (num_threads, 1, 1), seed=int(self.rng.integers(1 << 32)))
            self.launches[self.plan.first.kernel(launch.kernel).label] += 1
            launched += 1
        assert launched, f"no launch of {op.name} runs for {dict(dims)}"


def _parts_of(op: Op) -> tuple[OpKind, OpKind | None]:
    """An op that writes the arena and attends to it, as two kinds; for any other op, its kind and None."""
    if op.kind != _FUSED:
        return op.attrs, None
    attributes = op.attrs.attributes
    written = {field.name: attributes[field.name] for field in fields(RopeCacheWrite)}
    plain = {"norm_eps": None, "norms_values": False, "values_from_keys": False}
    return RopeCacheWrite(**written), RopeAttention(**attributes | plain)


def _normed(op: Op, inputs: dict[str, mx.array]) -> dict[str, mx.array]:
    """The inputs of those kinds: an op that normalises heads does that first."""
    if not isinstance(op.attrs, RopeWriteAttention) or op.attrs.norm_before is None:
        return inputs
    return inputs | {"qkv": evaluate(op.attrs.norm_before, inputs)["out"]}


def _poisoned(value: Value, dims: Mapping[Any, int]) -> "np.ndarray[Any, Any]":
    array = np.empty(shape_of(value.shape, dims), dtype=_NUMPY_DTYPES[str(value.dtype)])
    array.view(np.uint8).fill(0xFF)
    return array


def _floats(array: "np.ndarray[Any, Any]", dtype: str) -> "np.ndarray[Any, Any]":
    return floats(mx.array(array).view(MLX_DTYPES[dtype])) if dtype == "bf16" else array.astype(np.float32)


def mma_bench(artifact: Artifact, host: str, exactness: float = 1.0) -> OpBench:
    """A bench of MMA kernels; a GPU's matrix instructions truncate sums that other arithmetic rounds.

    Args:
        artifact: the artifact.
        host: as `kernel_host` names it.
        exactness: the allowed error on sim, in units of the error of an fp32 sum.
    """
    return OpBench(artifact, sum_error=(exactness if host == "sim" else max(4.0, exactness)) * SUM_ERROR)
