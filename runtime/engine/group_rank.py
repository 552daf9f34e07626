"""A rank of a model that is split: how it takes part in loading, and, on all ranks but the first, in every step."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlxr.compiler.artifact import ArenaGeometry, Artifact
from mlxr.compiler.errors import HostError, MlxrError
from mlxr.runtime.engine.choose_arena import choose_arena
from mlxr.runtime.garbage_waits import garbage_waits_no_longer
from mlxr.runtime.hosts.entry import HostEntry
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.hosts.select import check_host, make_host
from mlxr.runtime.memory.fitting_arena import has_free_size, of_blocks
from mlxr.runtime.memory.mmap_choice import Mmap
from mlxr.runtime.parallel.follower import Follower
from mlxr.runtime.parallel.leader import Leader
from mlxr.runtime.parallel.leader_host import LeaderHost
from mlxr.runtime.parallel.step_message import StepLimits
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.weight_file import WeightFile
from mlxr.runtime.weights.weights_digest import weights_digest

Connect = Callable[[Host], object]
"""Gives a host the collectives of its rank, before its first step."""


@dataclass(frozen=True)
class _Rank:
    """What all ranks do.

    Attributes:
        side: the rank's end of the control channel.
        connect: see `Connect`.
    """

    side: Leader | Follower
    connect: Connect

    def most_bytes(self, entry: HostEntry, most_bytes: int | None) -> int | None:
        """Memory that this rank may take: ranks on one machine share what is free.

        Args:
            entry: its host.
            most_bytes: what all ranks of this machine may take; None: what is free.
        """
        host, count = entry.load(), self.side.local_size
        if count == 1 or host.has_own_memory:
            return most_bytes
        free = host.free_memory().free_bytes
        return (free if most_bytes is None else min(free, most_bytes)) // count

    def agree(self, geometry: ArenaGeometry, file: WeightFile, entry: HostEntry) -> ArenaGeometry:
        """The arena that every rank allocates: of as many blocks as fit into the smallest memory.

        Nothing is loaded yet, so hosts that run whole models only are refused here.

        Args:
            geometry: the arena that fits here.
            file: this rank's weights, which must be those of all ranks.
            entry: its host, which must be that of all ranks.

        Raises:
            HostError: a rank differs, or cannot load.
        """
        if entry.load().use is Host.use:
            raise HostError(f"host {entry.name} runs no part of a model; use another host on every rank")
        same = {"weights": weights_digest(file), "host": entry.name, "block size": geometry.block_size}
        blocks = self.side.agree(geometry.num_blocks, same)
        if blocks != geometry.num_blocks and not has_free_size(geometry):
            raise HostError(f"a rank has room for {blocks} blocks, and this arena needs {geometry.num_blocks}")
        return of_blocks(geometry, blocks)


@dataclass(frozen=True)
class LeadingRank(_Rank):
    """Rank 0, for `Model`.

    Attributes:
        artifact: of all ranks.
    """

    side: Leader
    artifact: Artifact

    @property
    def on_one_machine(self) -> bool:
        """Whether all ranks are on this machine."""
        return self.side.local_size == 1 + len(self.side.ranks)

    def lead(self, host: Host) -> LeaderHost:
        """Waits until the other ranks have loaded, and connects with them; the host of all.

        Raises:
            HostError: a rank cannot load.
            RankLostError: a rank was lost, or the ranks cannot connect.
        """
        sizes, notes = self.side.wait_until_ready()
        try:
            self.connect(host)
        except Exception as error:  # the others may wait in a collective, so they cannot be told
            self.side.fail(f"rank 0 cannot connect with the other ranks: {error}")
        return LeaderHost(host, self.side, sizes, notes)


@dataclass(frozen=True)
class FollowingRank(_Rank):
    """Any other rank."""

    side: Follower

    def follow(
        self,
        artifact: Artifact,
        weights: str | Path,
        *,
        host: str = "auto",
        threads: int | None = None,
        shrink_arena: bool = False,
        most_bytes: int | None = None,
        mmap: Mmap = "auto",
        needed_context: int = 1,
    ) -> None:
        """Loads this rank's part of the model, and runs the steps that rank 0 describes until that ends.

        Args:
            artifact: of this rank.
            weights: as for `Model`.
            host: as for `Model`.
            threads: as for `Model`.
            shrink_arena: as for `Model`.
            most_bytes: as for `Model`.
            mmap: as for `Model`.
            needed_context: as for `Model`.

        Raises:
            MlxrError: this rank cannot load, or rank 0 refuses. Then all ranks end.
        """
        try:
            plan = artifact.plan
            entry = check_host(host, plan.targets, threads)
            file = open_weights(weights)
            chosen = choose_arena(
                artifact,
                file,
                entry,
                threads=threads,
                shrink=shrink_arena,
                most_bytes=self.most_bytes(entry, most_bytes),
                mmap=mmap,
                needed_context=needed_context,
            )
            geometry = self.agree(chosen.geometry, file, entry)
            arena = entry.load().arena_type(geometry)
            runner = make_host(host, artifact, file, arena, threads=threads, resident=chosen.resident)
        except MlxrError as error:
            self.side.give_up(str(error))
            raise
        limits = StepLimits.of(plan.max_tokens, plan.max_rows, plan.query_tile, geometry)
        with garbage_waits_no_longer():  # this is still within the load, as that returns on rank 0 alone
            self.side.serve(runner, self.connect, limits)
