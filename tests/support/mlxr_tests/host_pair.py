"""Two hosts that run the same batches: one runs an artifact's generated code, the reference runs its unfused graph.

The reference always computes on the CPU. Each host has its own arena. Logits, arenas and block copies are compared at
every step; bytes that a step may not touch must not change.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.formats.stores import STATES
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.cpu.host import CpuHost
from mlxr.runtime.hosts.cuda.device_array import on_device
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr_tests.arenas import check_arena, nan_arena, slots_of, snapshot
from mlxr_tests.following_reference import FollowingReference
from mlxr_tests.format_planes import has_minima, random_buffers
from mlxr_tests.kernel_host import make_kernel_host, on_cpu
from mlxr_tests.memory_weights import read_memory
from mlxr_tests.native_weights import Native, random_native
from mlxr_tests.op_bench import scatter
from mlxr_tests.specs import floats
from mlxr_tests.tolerances import LOGIT_ERROR, Floats, Mismatch, check_logits

Rows = Literal["last", "all", "none"]


def least_exact(artifact: Artifact, *, cache: bool = True) -> str:
    """The least exact part of the artifact's arithmetic: a type, or `fast` if activations may be rounded for speed."""
    spec = artifact.spec
    dtypes = [str(spec.activation_dtype), str(spec.cache.dtype) if cache else "f32"]
    if "metal" not in artifact.plan.targets and spec.compute == "fast":
        dtypes.append("fast")
    if any(has_minima(part.format) for weight in artifact.plan.weights for part in weight.parts):
        dtypes.append("minima")
    if any(store.name == STATES for store in artifact.plan.arena.stores):
        dtypes.append("states")
    return max(dtypes, key=["f32", "states", "minima", "f16", "q8", "bf16", "fast", "q4"].index)


@on_cpu
def logits_of(reference: Host, batch: Batch) -> "np.ndarray[Any, Any]":
    """The logits of a step of a reference, computed on the CPU: [rows, vocab] f32."""
    logits: np.ndarray[Any, Any] = floats(reference.step(batch))
    return logits


class HostPair:
    """Drives both hosts through one pager, and keeps the tokens that each sequence was fed."""

    def __init__(self, artifact: Artifact, weights: Mapping[str, mx.array] | None = None, **options: Any) -> None:
        """An artifact of target metal runs on the host of `kernel_host`; target cpu runs on cpu, with options."""
        self.artifact = artifact
        self.plan = artifact.plan
        native: Native = {}
        buffers: Mapping[str, mx.array] = {}
        if "metal" in self.plan.targets:
            buffers, self.weights = (weights, weights) if weights else random_buffers(self.plan)
            # On a card MLX moves what the CPU looks at, and recorded steps would read where the weights have been.
            buffers = {name: on_device(buffer) for name, buffer in buffers.items()}
        else:
            native, self.weights = random_native(self.plan)
        self.pager = Pager.from_geometry(self.plan.arena)
        scatter(self.pager)
        self.arena, self.reference_arena = (nan_arena(Arena(self.plan.arena)) for _ in range(2))
        self.host: Host = (
            CpuHost(artifact, read_memory(native), self.arena, **options)
            if native
            else make_kernel_host(artifact, buffers, self.arena)
        )
        self.dtype, arithmetic = least_exact(artifact), least_exact(artifact, cache=False)
        follows = arithmetic != self.dtype and arithmetic in ("f32", "states", "minima")  # only the cache rounds
        self.step_dtype = arithmetic if follows else self.dtype
        with mx.stream(mx.cpu):
            self.reference: Host = (
                FollowingReference(artifact, self.weights, self.reference_arena, self.arena, LOGIT_ERROR[arithmetic])
                if follows
                else ReferenceHost(artifact, self.weights, self.reference_arena)
            )
        self.fed: dict[int, list[int]] = {}

    def add(self) -> int:
        """Adds a sequence and returns its id."""
        seq_id = self.pager.add_sequence()
        self.fed[seq_id] = []
        return seq_id

    def fork(self, seq_id: int) -> int:
        """Adds a sequence that shares another's tokens, and returns its id."""
        fork_id = self.pager.fork(seq_id)
        self.fed[fork_id] = list(self.fed[seq_id])
        return fork_id

    def free(self, seq_id: int) -> None:
        """Forgets a sequence."""
        self.pager.free(seq_id)
        del self.fed[seq_id]

    def undo(self, seq_id: int, tokens: Sequence[int], count: int) -> None:
        """Feeds tokens to a sequence on both hosts, then takes the last ones back."""
        self.step([(seq_id, tokens)], undo=count)
        del self.fed[seq_id][-count:]
        self.pager.truncate(seq_id, len(self.fed[seq_id]))

    def step(
        self,
        parts: Sequence[tuple[int, Sequence[int]]],
        rows: Rows | Mapping[int, Rows] = "last",
        undo: int = 0,
    ) -> "np.ndarray[Any, Any]":
        """Feeds tokens to sequences in one batch on both hosts, compares everything, and returns the host's logits."""
        rows_of: Mapping[int, Rows] = {s: rows for s, _ in parts} if isinstance(rows, str) else rows
        requests = [BatchRequest(s, tokens, self.pager.length(s), rows_of[s], undo) for s, tokens in parts]
        batch = self.build(requests)
        for group, copies in enumerate((self.pager.take_copies(), *self._copies_of_others())):
            self._copy(copies, group)
        before = snapshot(self.arena)
        got, want = np.array(self.host.read(self.host.step(batch))), logits_of(self.reference, batch)
        self.pager.check_integrity()
        for seq_id, tokens in parts:
            self.fed[seq_id] += tokens
        what = f"batch of {[(len(t), self.pager.length(s)) for s, t in parts]} (tokens, context)"
        self._check_logits(what, batch, got, want)
        written = {layer: set(slots_of(self.arena, batch, layer)) for layer in range(self.plan.num_layers)}
        on_cpu(check_arena)(self.arena, before, self.reference_arena, written, self._check_rows)
        return got

    def build(self, requests: Sequence[BatchRequest]) -> Batch:
        """The batch of a step."""
        return Batch.build(requests, self.pager, self.plan.query_tile)

    @on_cpu
    def fresh_logits(self, tokens: Sequence[int]) -> "np.ndarray[Any, Any]":
        """The reference's logits after the last of these tokens, for a single sequence in an arena of its own."""
        pager, arena = Pager.from_geometry(self.plan.arena), nan_arena(Arena(self.plan.arena))
        request = BatchRequest(pager.add_sequence(), tokens, 0)
        batch = Batch.build([request], pager, self.plan.query_tile)
        return logits_of(ReferenceHost(self.artifact, self.weights, arena), batch).reshape(-1)

    def _copies_of_others(self) -> list[list[tuple[int, int]]]:
        return [self.pager.take_copies_of(group) for group in range(1, len(self.plan.arena.groups))]

    def _copy(self, copies: Sequence[tuple[int, int]], group: int) -> None:
        if not copies:
            return
        geometry = self.plan.arena
        expected = snapshot(self.arena)
        for part in geometry.of_group(group):
            bits = expected[part.name]
            blocks = bits.reshape(len(bits), part.num_units, -1)
            for source, target in copies:
                blocks[:, target] = blocks[:, source]
        self.host.copy_blocks(copies, group)
        mx.eval(self.arena.token)  # a host may have queued the copies only
        on_cpu(self.reference.copy_blocks)(copies, group)
        after = snapshot(self.arena)
        for name, bits in expected.items():
            if (after[name] != bits).any():
                raise Mismatch(f"{name}: the copies {copies} are not in the arena")

    def _check_logits(self, what: str, batch: Batch, got: Floats, want: Floats) -> None:
        check_logits(what, got, want, self.step_dtype)

    def _check_rows(self, what: str, got: Floats, want: Floats, dtype: str) -> None:
        check_logits(what, got, want, self.step_dtype)
