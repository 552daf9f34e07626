"""The C kernels of the KV cache, each alone: built for one case, run by their own threads, and compared.

The arena is NaN wherever no sequence of the batch has tokens, and so is all scratch, so that a kernel that reads an
unwritten place computes NaN. Everything that a kernel writes is compared with the reference; outside the slots of the
new tokens, every bit must be unchanged.
"""

import ctypes
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import ArenaGeometry, Artifact
from mlxr.compiler.ir.ops.attention import PackedAttention, RopeAttention, RopeWriteAttention
from mlxr.compiler.ir.ops.cache import RopeCacheWrite
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel
from mlxr.compiler.targets.cpu.kernels.attend_decode import CpuAttendDecode
from mlxr.compiler.targets.cpu.kernels.attend_prefill import CpuAttendPrefill
from mlxr.compiler.targets.cpu.kernels.cache_write import CpuCacheWrite
from mlxr.compiler.targets.cpu.kernels.copy_blocks import copy_blocks_launch
from mlxr.compiler.targets.cpu.kernels.rope_table import CpuRopeTable
from mlxr.compiler.targets.environment import environment
from mlxr.compiler.targets.head_norms import HeadNorms, head_norms
from mlxr.compiler.targets.scores import slopes_log2
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.cpu.library import CBatch, CBlocks
from mlxr.runtime.hosts.mlx_ops import ArenaLayer, evaluate
from mlxr_tests.arenas import check_arena, copy_arena, nan_arena, snapshot, write_slots
from mlxr_tests.attention_cases import Case
from mlxr_tests.c_harness import address, aligned, c_library
from mlxr_tests.op_bench import scatter
from mlxr_tests.specs import compiled, floats
from mlxr_tests.tolerances import SUM_ERROR, check_op

Compute = Literal["exact", "fast"]
LAYER = 1
FAST_ERROR = 1.5e-2
"""Error of attention with queries and weights rounded to bf16, relative to the largest element of the result."""
HEADERS = (
    *("common.h", "simd.h", "math.h", "activations.h", "inputs.h", "rows.h", "gemm.h"),
    *("cache.h", "attend.h", "attend_few.h", "attend_tiles.h", "prefill_tiles.h"),
)
_WITH_DOTS = (*HEADERS[:-2], "attend_dots.h", *HEADERS[-2:])
_WITH_SLOPES = (*HEADERS[:-2], "attend_slopes.h", *HEADERS[-2:])
DRIVER = """
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#if defined(MLXR_AMX)
#include <sys/syscall.h>
#include <unistd.h>
int ask_for_tiles(void) { return (int)syscall(SYS_arch_prctl, 0x1023, 18); }
#else
int ask_for_tiles(void) { return 0; }
#endif
enum { MOST_THREADS = 16 };
static pthread_barrier_t waiting;
static int barriers[MOST_THREADS];
void mlxr_barrier(mlxr_worker *w) {
    barriers[w->tid]++;
    pthread_barrier_wait(&waiting);
}
typedef struct {
    mlxr_worker *w;
    const mlxr_batch *b;
    const float *qkv, *sinks, *q_norm, *k_norm;
    float *table, *out;
    int layer, kernel;
} job;
static void *run_one(void *argument) {
    const job *j = argument;
    switch (j->kernel) { CALLS }
    return NULL;
}
// Runs a kernel; 0, or 1 if threads waited for each other a different number of times.
int run(int kernel, int threads, size_t scratch_bytes, const mlxr_batch *b, const float *qkv, float *table, int layer,
        const float *sinks, const float *q_norm, const float *k_norm, float *out, uint8_t *const *stores) {
    mlxr_worker workers[MOST_THREADS];
    mlxr_model model = {.stores = stores, .workers = workers, .threads = threads};
    job jobs[MOST_THREADS];
    pthread_t ids[MOST_THREADS];
    pthread_barrier_init(&waiting, NULL, (unsigned)threads);
    for (int t = 0; t < threads; t++) {
        workers[t] = (mlxr_worker){.model = &model, .tid = t, .threads = threads};
        if (posix_memalign((void **)&workers[t].scratch, 64, scratch_bytes + 64)) abort();
        memset(workers[t].scratch, 0xff, scratch_bytes);
        barriers[t] = 0;
        jobs[t] = (job){&workers[t], b, qkv, sinks, q_norm, k_norm, table, out, layer, kernel};
    }
    for (int t = 1; t < threads; t++)
        if (pthread_create(&ids[t], NULL, run_one, &jobs[t])) abort();
    run_one(&jobs[0]);
    // Threads read each other's scratch to the end.
    for (int t = 1; t < threads; t++) pthread_join(ids[t], NULL);
    int unequal = 0;
    for (int t = 0; t < threads; t++) {
        unequal |= barriers[t] != barriers[0];
        free(workers[t].scratch);
    }
    pthread_barrier_destroy(&waiting);
    return unequal;
}
void copy(const int32_t *pairs, int count, uint8_t *const *stores) {
    mlxr_model model = {.stores = stores};
    copy_blocks(&model, 0, pairs, count);
}
"""
_KERNELS = ("rope_table", "cache_write", "attend_prefill", "attend_decode")
_PLACES = ("positions", "slots", "query_start", "context_lens", "block_tables")


def kernels_of(
    arena: ArenaGeometry,
    attrs: PackedAttention,
    frequencies: Sequence[float],
    compute: Compute,
    *,
    sinks: bool = False,
    norms: HeadNorms | None = None,
) -> dict[str, CpuKernel]:
    """The kernels of a layer by name. `attrs` are the attributes of its decode attention, which alone has norms."""
    cache: dict[str, Any] = {"arena": arena.cache_of(LAYER), "stores": (0, 1), "group": 0}
    packing = {name: getattr(attrs, name) for name in ("num_heads", "rotary_dim", "rope_layout")}
    heads: dict[str, Any] = cache | packing | {"own_keys": True}
    softmax: dict[str, Any] = {
        name: getattr(attrs, name) for name in ("scale", "window", "softcap", "chunked", "temperature")
    }
    softmax |= {"compute": compute, "sinks": sinks, "slopes": slopes_log2(attrs.biases, attrs.num_heads)}
    table = {"rope_table": CpuRopeTable("rope_table", tuple(frequencies), attrs.rope_scale)} if frequencies else {}
    return table | {
        "cache_write": CpuCacheWrite("cache_write", **heads),
        "attend_prefill": CpuAttendPrefill("attend_prefill", **heads, **softmax),
        "attend_decode": CpuAttendDecode("attend_decode", **heads, **softmax, norms=norms),
        "copy_blocks": copy_blocks_launch(arena).body,
    }


def text_of_kernels(kernels: dict[str, CpuKernel]) -> str:
    """The kernels' C text, without headers."""
    rendered = [environment().get_template(f"cpu/{k.template}").render(k=k, name=name) for name, k in kernels.items()]
    return "\n".join(["void mlxr_barrier(mlxr_worker *w);", *rendered])


_ARGUMENTS = {name: f"j->{name}" for name in ("qkv", "layer", "sinks", "q_norm", "k_norm", "out")}
_ARGUMENTS |= {"rope_table": "j->table"}
_PLAIN: dict[str, Any] = {"norm_eps": None, "norms_values": False, "values_from_keys": False}
"""Attributes of an attention whose heads are normalised before."""


def driver_of_kernels(kernels: dict[str, CpuKernel]) -> str:
    """The C text that runs the kernels."""
    calls = ""
    for index, name in enumerate(_KERNELS):
        if name in kernels:
            places = _ARGUMENTS | ({"out": "j->table"} if name == "rope_table" else {})
            arguments = "".join(f", {places[param.name]}" for param in kernels[name].params)
            calls += f"case {index}: {name}(j->w, j->b{arguments}); break; "
    return DRIVER.replace("CALLS", calls)


@functools.lru_cache(maxsize=64)
def _library(text: str, march: str, compiler: tuple[str, ...] | None, headers: tuple[str, ...]) -> ctypes.CDLL:
    library = c_library(headers, text, march, compiler)
    assert library.ask_for_tiles() == 0, "the system grants no matrix tiles"
    return library


def decode_attention(
    case: Case,
) -> tuple[Artifact, RopeWriteAttention, bool, "np.ndarray[Any, np.dtype[np.float32]]"]:
    """A case's artifact, its decode attention in LAYER, whether the attention has sinks, and its frequencies."""
    artifact = compiled(dataclasses.replace(case, activation="f32").spec, target="cpu")
    graph = artifact.graph("decode")
    op, attrs = next((op, attrs) for op, attrs in graph.ops_of(RopeWriteAttention) if op.layer == LAYER)
    frequencies = graph.value(op.inputs["frequencies"]).data if "frequencies" in op.inputs else ()
    return artifact, attrs, "sinks" in op.inputs, np.asarray(frequencies, dtype=np.float32)


def _norms_of(artifact: Artifact) -> HeadNorms | None:
    """The norms of heads of the decode attention in LAYER."""
    graph = artifact.graph("decode")
    op = next(op for op, _ in graph.ops_of(RopeWriteAttention) if op.layer == LAYER)
    return head_norms(op, lambda op, port: graph.value(op.inputs[port]))


class AttentionBench:
    """A case's kernels with a pager and two arenas of the same content: the kernels' and the reference's.

    Args:
        case: the case; its activation type is ignored, because activations are f32 here.
        compute: how the attention kernels compute.
        march: the instruction set.
        compiler: one of `c_harness.compilers()`; None: the first.
        scale: size of queries, keys and values.
        sum_error: see the tolerance table; None: the error that belongs to `compute`.
        dots: whether dot products of bf16 take the place of matrix tiles, as for rows of latents.
    """

    def __init__(
        self,
        case: Case,
        compute: Compute = "exact",
        march: str = "native",
        compiler: tuple[str, ...] | None = None,
        *,
        scale: float = 1.0,
        sum_error: float | None = None,
        dots: bool = False,
    ) -> None:
        self.case = case
        artifact, self.attrs, self.has_sinks, self.frequencies = decode_attention(case)
        self.plan = artifact.plan
        self.norms = _norms_of(artifact)
        frequencies = self.frequencies.tolist()
        self.kernels = kernels_of(
            self.plan.arena, self.attrs, frequencies, compute, sinks=self.has_sinks, norms=self.norms
        )
        self.scratch_bytes = max(kernel.thread_bytes for kernel in self.kernels.values())
        assert not any(kernel.shared_bytes for kernel in self.kernels.values()), "this bench has no shared scratch"
        text = text_of_kernels(self.kernels) + driver_of_kernels(self.kernels)
        self.library = _library(
            text, march, compiler, _WITH_DOTS if dots else _WITH_SLOPES if self.attrs.biases else HEADERS
        )
        self.scale = scale
        self.sum_error = sum_error or (SUM_ERROR if compute == "exact" else FAST_ERROR)
        self.rng = np.random.default_rng(0)
        self.sinks = _f32(case.heads)
        self.sinks[:] = self.rng.standard_normal(case.heads) * 3 if self.has_sinks else np.nan
        weights = self.norms.ports if self.norms else ()
        each = self.norms is not None and self.norms.each
        self.weights = {
            name: self.rng.random((heads if each else 1) * case.head_dim, dtype=np.float32) + np.float32(0.5)
            for (name, _), heads in zip(weights, (case.heads, case.kv_heads), strict=False)
        }
        self.arena, self.reference = (nan_arena(Arena(self.plan.arena)) for _ in range(2))
        self.pager = Pager.from_geometry(self.plan.arena)
        scatter(self.pager)

    def run(self, parts: Sequence[tuple[int, int]], threads: int, mode: Literal["decode", "prefill"]) -> None:
        """Runs and checks a step of new sequences, (history, new tokens) each, then clears the arenas.

        Raises:
            Mismatch: a kernel computed or wrote something other than the reference.
        """
        seq_ids = [self.pager.add_sequence() for _ in parts]
        for seq_id, (history, _) in zip(seq_ids, parts, strict=True):
            if history:
                write_slots(self.arena, self.pager.append(seq_id, history), self.rng)
        requests = [BatchRequest(s, [1] * new, history) for s, (history, new) in zip(seq_ids, parts, strict=True)]
        batch = Batch.build(requests, self.pager, self.plan.query_tile)
        assert not self.pager.take_copies(), "no forks here"
        copy_arena(self.arena, self.reference)
        self._step(batch, threads, mode)
        for seq_id in seq_ids:
            self.pager.free(seq_id)
        nan_arena(self.arena)
        nan_arena(self.reference)

    def _step(self, batch: Batch, threads: int, mode: Literal["decode", "prefill"]) -> None:
        case, before = self.case, snapshot(self.arena)
        what = f"{mode} of contexts {batch.context_lens.tolist()} by {threads} threads"
        columns = self.attrs.qkv_columns if mode == "decode" else dataclasses.replace(self.attrs, **_PLAIN).qkv_columns
        qkv = _f32(batch.num_tokens, columns)
        qkv[:] = self.rng.standard_normal(qkv.shape, dtype=np.float32) * np.float32(self.scale)
        table = _f32(batch.num_tokens, 2 * len(self.frequencies))
        out = _f32(batch.num_tokens, case.heads * self.attrs.value_dim)
        for kernel in ("rope_table", "attend_decode") if mode == "decode" else _KERNELS[:3]:
            if kernel in self.kernels:
                self.launch(kernel, batch, threads, qkv, table, out)

        inputs = {name: mx.array(getattr(batch, name)) for name in _PLACES}
        inputs |= {"qkv": mx.array(qkv), "frequencies": mx.array(self.frequencies)}
        inputs |= {"k_arena": self.reference.stores["k_arena"], "v_arena": self.reference.stores["v_arena"]}
        if self.has_sinks:
            inputs["sinks"] = mx.array(self.sinks)
        if mode == "decode" and self.attrs.norm_before is not None:
            of_heads = {name: mx.array(weight) for name, weight in self.weights.items()}
            inputs["qkv"] = evaluate(self.attrs.norm_before, inputs | of_heads)["out"]
        attributes, place = self.attrs.attributes | _PLAIN, ArenaLayer(self.reference, LAYER)
        written = {field.name: attributes[field.name] for field in dataclasses.fields(RopeCacheWrite)}
        evaluate(RopeCacheWrite(**written), inputs, place)
        check_arena(self.arena, before, self.reference, {LAYER: set(batch.slots.tolist())})
        # An element may have been rounded the other way, so attention is compared on the same arena.
        copy_arena(self.arena, self.reference)
        want = evaluate(RopeAttention(**attributes), inputs, place)["out"]
        check_op(what, out, floats(want), "f32", sum_error=self.sum_error)

    def launch(self, kernel: str, batch: Batch, threads: int, qkv: Any, table: Any, out: Any) -> None:
        """Runs one kernel on all threads."""
        places = {name: np.ascontiguousarray(getattr(batch, name), dtype=np.int32) for name in _PLACES}
        at = {name: array.ctypes.data for name, array in places.items()}
        c_batch = CBatch(
            program=int(kernel != "attend_decode"),
            tokens=batch.num_tokens,
            seqs=batch.num_seqs,
            rows=batch.num_rows,
            **{name: at[name] for name in ("positions", "query_start", "context_lens")},
            groups=(CBlocks * 1)(CBlocks(at["slots"], at["block_tables"], batch.block_tables.shape[1])),
        )
        weights = [address(self.weights[name]) if name in self.weights else None for name in ("q_norm", "k_norm")]
        pointers = (address(qkv), address(table), LAYER, address(self.sinks), *weights, address(out), self._stores())
        size = ctypes.c_size_t(self.scratch_bytes)
        unequal = self.library.run(_KERNELS.index(kernel), threads, size, ctypes.byref(c_batch), *pointers)
        assert not unequal, f"threads of {kernel} meet at barriers a different number of times"

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies blocks, (source, target), in the kernels' arena."""
        self.library.copy(address(np.array(pairs, dtype=np.int32)), len(pairs), self._stores())

    def _stores(self) -> "ctypes.Array[ctypes.c_void_p]":
        return (ctypes.c_void_p * 2)(*self.arena.addresses())


def _f32(*shape: int) -> "np.ndarray[Any, np.dtype[Any]]":
    array = aligned(shape, np.float32)
    array[...] = np.nan
    return array
