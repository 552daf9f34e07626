"""Makes the `Model` of an artifact; of one that is split, rank 0 gets it, and the other ranks execute their parts."""

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import HostError, MlxrError
from mlxr.compiler.version import VERSION
from mlxr.loading.files_check import FilesCheck
from mlxr.loading.options import LoadOptions
from mlxr.loading.parts_note import note_of_parts
from mlxr.runtime.engine.choose_arena import Head
from mlxr.runtime.engine.group_rank import FollowingRank, LeadingRank
from mlxr.runtime.engine.model import Model
from mlxr.runtime.engine.model_tokenizer import ModelTokenizer
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.parallel.cores import place_threads
from mlxr.runtime.parallel.follower import Follower
from mlxr.runtime.parallel.join import World, join
from mlxr.runtime.parallel.launch import naming_rank
from mlxr.runtime.parallel.launcher_process import fill_input, give_way_to_ranks, watch_launcher
from mlxr.runtime.parallel.leader import Leader
from mlxr.runtime.parallel.links import Links
from mlxr.runtime.parallel.loss import LOST_CODE, write_line
from mlxr.runtime.parallel.meeting import share_bytes
from mlxr.runtime.parallel.rank_exchange import RankExchange
from mlxr.runtime.parallel.restart import RESTARTED_VARIABLE
from mlxr.runtime.weights.open_weights import open_weights

_LOG = logging.getLogger(__name__)


def make_model(
    artifact: Artifact,
    weights: Path,
    options: LoadOptions,
    *,
    ranks: LeadingRank | None = None,
    read: ModelTokenizer | None = None,
    head: Head | None = None,
) -> Model:
    """The model of an artifact that is here whole, or rank 0's part.

    Args:
        artifact: it.
        weights: as for `Model`.
        options: how it is loaded.
        ranks: as for `Model`.
        read: as for `Model`.
        head: that guesses for it; None: there is none, or that is not used.

    Raises:
        MlxrError: see `Model`.
    """
    if (note := note_of_parts(open_weights(weights) if head is None else head.file)) is not None:
        _LOG.warning("note: %s", note)
    return Model(
        artifact,
        weights,
        host=options.host,
        tokenizer=options.tokenizer,
        threads=options.threads,
        tiers=options.tiers,
        shrink_arena=options.shrink_arena,
        most_bytes=options.most_bytes,
        mmap=options.mmap,
        needed_context=options.changes.needed_context,
        progress=options.progress,
        ranks=ranks,
        read=read,
        needs_text=options.needs_text,
        head=head,
    )


def make_checked(
    artifact: Artifact,
    own: Path | None,
    options: LoadOptions,
    check: FilesCheck,
    head_of: Callable[[Artifact, Path], Head | None],
) -> Model:
    """The model of an artifact, once its spec is compared with weights that it does not come from.

    Of an artifact that is split, each rank compares once it can tell the others what it found.

    Args:
        artifact: it, whole.
        own: weights of its own; None: it has none.
        options: how it is loaded.
        check: what was checked before, and the tokenizer that was read.
        head_of: gives the head that guesses for it, from the artifact and the weights.

    Raises:
        MlxrError: see `FilesCheck`, `Model` and `load_rank`.
    """
    weights = check.path(artifact.spec, own)
    compare = partial(check.compare, artifact.spec, weights)
    if artifact.parallel is not None:
        return load_rank(artifact, weights, options, check=compare, read=check.read)
    compare()
    return make_model(artifact, weights, options, read=check.read, head=head_of(artifact, weights))


def load_rank(
    artifact: Artifact,
    weights: Path,
    options: LoadOptions,
    *,
    check: Callable[[], object] | None = None,
    read: ModelTokenizer | None = None,
) -> Model:
    """Joins the other ranks, and loads this rank's part. It returns on rank 0 alone: others end when rank 0 does.

    Args:
        artifact: of all ranks.
        weights: as for `Model`; each rank reads its own part.
        options: how it is loaded.
        check: raises what is wrong with this rank's files; it runs once the other ranks can learn of it.
        read: as for `Model`.

    Raises:
        HostError: this process was not started by `mlx.launch`, or a rank is missing, or differs.
        MlxrError: a rank cannot load.
        SystemExit: this is not rank 0, and rank 0 has ended.
    """
    split = artifact.parallel
    assert split is not None, "the artifact is split"
    watch_launcher()
    world, side = _meet(artifact, split.size, options.control)
    rank = world.group.rank()
    place_threads(world.local_rank, world.local_size, options.threads)
    give_way_to_ranks()
    if rank:
        fill_input()

    def connect(runner: Host) -> None:
        plan = runner.plan.rank
        assert plan is not None, "its artifact is a rank's"
        runner.use(RankExchange(Links(plan, world), plan))

    if isinstance(side, Leader):
        with side.refusing():
            if check is not None:
                check()
            own = artifact.of_rank(0)
            return make_model(own, weights, options, ranks=LeadingRank(side, connect, artifact), read=read)
    with naming_rank():
        try:
            if check is not None:
                check()
        except MlxrError as error:
            side.give_up(str(error))
            raise
        FollowingRank(side, connect).follow(
            artifact.of_rank(rank),
            weights,
            host=options.host,
            threads=options.threads,
            shrink_arena=options.shrink_arena,
            most_bytes=options.most_bytes,
            mmap=options.mmap,
            needed_context=options.changes.needed_context,
        )
    raise SystemExit(0)


def _meet(artifact: Artifact, size: int, control: str | None) -> tuple[World, Leader | Follower]:
    """Joins, and connects to rank 0 or to all others. After a loss, what is missing may yet come: try again."""
    try:
        world = join(size)
        share, rank = share_bytes(world.group), world.group.rank()
        same = {"version": VERSION, "artifact": artifact.digest}
        with naming_rank():
            return world, Follower(share, rank, same) if rank else Leader(share, size, same, control=control)
    except HostError as error:
        if os.environ.get(RESTARTED_VARIABLE):
            write_line(f"error: {error}")
            os._exit(LOST_CODE)
        raise
