"""A rank of a group whose hosts are `HashHost`s: started with `start_ranks`, or as a module by these.

Each step ends with a sum over the ranks. It is wrong if the ranks do not have the same K and V, and never ends if a
rank is missing.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import RankPosition
from mlxr.loading.resolve import resolve_artifact
from mlxr.runtime.cache.tiers.block_identity import BlockIdentity
from mlxr.runtime.cache.tiers.block_tiers import BlockTiers
from mlxr.runtime.cache.tiers.tier_sizes import TierSizes
from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.runtime.engine.group_rank import FollowingRank, LeadingRank
from mlxr.runtime.engine.model import Model
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.parallel.follower import Follower
from mlxr.runtime.parallel.leader import Leader
from mlxr.runtime.parallel.leader_host import LeaderHost
from mlxr.runtime.parallel.meeting import Share, share_bytes
from mlxr.runtime.parallel.step_message import StepLimits
from mlxr_tests.hash_host import VOCAB, HashEngine, HashHost, HashModel, answer_alone
from mlxr_tests.kv_blocks import other
from mlxr_tests.storyteller import TINY

CONTEXT, BLOCKS = 200, 60


class RankHost(HashHost):
    """A rank's host. Rank r's blocks and states have the bytes of a `HashHost` r + 1 times."""

    def __init__(self, world: Any, seconds: float, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._world, self._seconds = world, seconds
        self.plan.rank = RankPosition(rank=world.rank(), tensor=world.size(), pipeline=1)

    def step(self, batch: Any) -> Any:
        time.sleep(self._seconds)
        logits = super().step(batch)
        total = np.array(mx.distributed.all_sum(mx.array(logits[:1, :8]), group=self._world))
        if not np.allclose(total, self._world.size() * logits[:1, :8]):
            raise ValueError("the ranks have different K and V")
        return logits

    def shared_ids(self, ids: mx.array | None, count: int) -> mx.array:
        own = mx.zeros((count,), mx.int32) if ids is None else ids
        return mx.distributed.all_sum(own, group=self._world)

    @property
    def block_bytes(self) -> int:
        return (self._world.rank() + 1) * super().block_bytes

    @property
    def slot_bytes(self) -> int:
        return (self._world.rank() + 1) * super().slot_bytes

    def read_blocks(self, block_ids: Sequence[int], group: int | None = 0) -> np.ndarray:
        return np.concatenate([super().read_blocks(block_ids, group)] * (self._world.rank() + 1), axis=1)

    def write_blocks(self, block_ids: Sequence[int], data: np.ndarray, group: int | None = 0) -> None:
        first, *rest = np.split(data, self._world.rank() + 1, axis=1)
        assert all((part == first).all() for part in rest), "bytes of another rank"
        super().write_blocks(block_ids, np.ascontiguousarray(first), group)


class EagerTiers(BlockTiers):
    """Tiers that always find it worth while to read."""

    def worth(self, num_tokens: int, num_bytes: int, from_disk: bool) -> bool:
        return True


def main(options: Mapping[str, Any]) -> None:
    """Runs a rank."""
    world = mx.distributed.init(strict=True, backend="ring")
    rank, share = world.rank(), share_bytes(world)
    slow = options.get("slow", {}).get(str(rank), 0.0)
    same = {"version": "1", "artifact": options.get("artifact", {}).get(str(rank), "a" * 64)}

    def make_host(*arguments: Any, **more: Any) -> RankHost:
        return RankHost(world, slow, *arguments, **more)

    pipelines = bool(options.get("pipelines"))
    slots = 20 * bool(options.get("states"))  # 12 more than the sequences need
    engine = {"context": CONTEXT, "pipelines": pipelines, "state_slots": slots, "state_every": 16 * bool(slots)}

    if options["scene"] == "model":
        whole_model(share, rank, world.size(), same)
        return
    if rank:
        follower = Follower(share, rank, same)
        blocks = follower.agree(BLOCKS + rank, {"block size": 4})
        host: Any = HashEngine(blocks, 4, 4, **engine, make_host=make_host).host
        limits = StepLimits.of(16, 16, 4, host.plan.arena)
        follower.serve(host, lambda host: None, limits)
        return
    leader = Leader(share, world.size(), same)
    blocks = leader.agree(BLOCKS + 5 - world.size(), {"block size": 4})
    tiers = None
    if options.get("tiers"):
        size = 32 * sum(range(1, world.size() + 1))
        identity: BlockIdentity = other(
            model="hash", block_size=4, block_bytes=size, state_bytes=size // 4 * bool(slots)
        )
        tiers = EagerTiers(identity, memory_bytes=100 * size, disk_bytes=0, disk_bytes_per_hour=0)

    def make_leader(*arguments: Any, **more: Any) -> LeaderHost:
        inner: Any = make_host(*arguments, **more)
        return LeaderHost(inner, leader, *leader.wait_until_ready())

    hashes = HashEngine(blocks, 4, 4, **engine, tiers=tiers, make_host=make_leader)
    SCENES[options["scene"]](hashes)


def whole_model(share: Share, rank: int, size: int, same: Mapping[str, str]) -> None:
    """Every rank has a whole model: only what is told between them is tried. Rank 0 prints an answer's ids."""
    artifact, _ = resolve_artifact(str(TINY))
    if rank:
        FollowingRank(Follower(share, rank, same), lambda host: None).follow(artifact, TINY, host="cpu", threads=1)
        return
    ranks = LeadingRank(Leader(share, size, same), lambda host: None, artifact)
    with Model(artifact, TINY, host="cpu", threads=1, tiers=TierSizes(memory_bytes=1 << 20), ranks=ranks) as model:
        print(json.dumps(model.generate("Once upon", max_tokens=20).token_ids), flush=True)


def answers(hashes: HashEngine) -> None:
    """Random prompts, many of which begin alike, answered together; prints how many are wrong, and the counters."""
    random = np.random.default_rng(1)
    starts = [random.integers(1, VOCAB, 60).tolist() for _ in range(4)]
    prompts = [[*starts[i % 4][: 20 + i % 40], *random.integers(1, VOCAB, 1 + i % 9).tolist()] for i in range(14)]
    sampling = Sampling(max_tokens=40, temperature=0.7, seed=5)
    model: Any = HashModel(hashes)
    with EngineThread(lambda: model) as engine:
        wrong = 0
        # Each prompt is the call's number i, and its only sample.
        states = {"has_state": hashes.pager.states is not None}
        alone = [answer_alone(p, sampling, 0, CONTEXT, on_device=hashes.host.pipelines, **states) for p in prompts]
        for _ in range(2):
            completions = engine.generate_all(prompts, sampling)
            wrong += sum(c.token_ids != a for c, a in zip(completions, alone, strict=True))
        stats = engine.stats()
    model.host.close()
    counts = {k: getattr(stats, k) for k in ("preemptions", "cached_tokens", "restored_tokens", "steps", "blocks")}
    print(json.dumps({"wrong": wrong} | counts), flush=True)


def endless(hashes: HashEngine) -> None:
    """Answers that do not end by themselves; prints `running`, and the errors that the callers get."""
    model: Any = HashModel(hashes)
    engine = EngineThread(lambda: model)

    def call(number: int) -> None:
        try:
            while True:
                for place, _ in enumerate(engine.stream([number + 1], Sampling(max_tokens=CONTEXT - 2))):
                    if number == 0 and place == 10:
                        print("running", flush=True)
        except Exception as error:
            sys.stdout.write(f"{number} {type(error).__name__}: {error}\n")  # `print` writes the end apart
            sys.stdout.flush()

    threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(60)


SCENES: dict[str, Callable[[HashEngine], None]] = {"answers": answers, "endless": endless}


@contextmanager
def start_ranks(count: int, folder: Path, **options: Any) -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes of this module, one for each rank; what is left of them at the end is killed."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    hosts = [[f"127.0.0.1:{listener.getsockname()[1]}"] for listener in listeners]
    for listener in listeners:
        listener.close()
    (folder / "hosts.json").write_text(json.dumps(hosts))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "mlxr_tests.hash_rank", json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ
            | {
                "MLX_RANK": str(rank),
                "MLX_HOSTFILE": str(folder / "hosts.json"),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
        )
        for rank in range(count)
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
