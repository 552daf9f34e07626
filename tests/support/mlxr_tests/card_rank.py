"""A rank on host cuda, with the sim in MLX's place: `python -m mlxr_tests.card_rank PARALLEL`.

Rank 0 prints tokens, how many steps were told to the others while the one before was not read, the ids of those steps,
and the widths of the results that were gathered after the warm-up. Other ranks print the ids that they got.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.spec.parallel import Parallel
from mlxr.loading.make_model import load_rank
from mlxr.loading.options import LoadOptions
from mlxr.runtime.engine.samples import Samples
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr.runtime.hosts.cuda.parallel.meet_peers import SETTING
from mlxr.runtime.parallel.connection import MessageKind
from mlxr.runtime.parallel.leader import Leader
from mlxr.runtime.parallel.links import Links
from mlxr_tests.fake_card import SimLauncher, use_card
from mlxr_tests.storyteller import TINY, tiny_spec

PROMPTS = ([1, 403, 27], [1, *range(300, 309)])
TOKENS = 6
SAMPLING: dict[str, Any] = {"temperature": 0.5, "top_k": 5, "seed": 3, "n": 2}


def main(parallel: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs as one rank."""
    mx.disable_compile()
    monkeypatch.setenv(SETTING, "0")
    spec = tiny_spec(cache={"max_sequences": 4}).model_copy(update={"parallel": Parallel(**parallel)})
    artifact = compile_spec(spec).artifact
    rank = int(os.environ["MLX_RANK"])
    part = artifact.of_rank(rank)
    use_card(monkeypatch, part, SimLauncher(part))
    late: list[list[int]] = []
    share_ids = CudaHost.shared_ids

    def shared_ids(host: CudaHost, ids: mx.array | None, count: int) -> mx.array:
        assert (ids is None) == (rank > 0), "rank 0 alone has ids"
        shared = share_ids(host, ids, count)
        late.append(shared.tolist())
        return shared

    monkeypatch.setattr(CudaHost, "shared_ids", shared_ids)
    if rank:
        try:
            load_rank(artifact, TINY, LoadOptions(host="cuda"))
        finally:
            print(json.dumps(late))
    model = load_rank(artifact, TINY, LoadOptions(host="cuda"))
    warm, widths = len(late), set[int]()
    counts = watch(monkeypatch)
    gather = Links.gather_lazily

    def gather_lazily(links: Links, x: mx.array | None, bounds: Sequence[int], rows: int) -> mx.array:
        widths.add(bounds[-1])
        return gather(links, x, bounds, rows)

    monkeypatch.setattr(Links, "gather_lazily", gather_lazily)
    prompts = [list(prompt) for prompt in PROMPTS]
    answers = model.start(prompts, max_tokens=TOKENS, sampling=mlxr.Sampling(**SAMPLING)).finish()
    model.close()
    tokens = [answer.token_ids for answer in answers]
    print(json.dumps({"tokens": tokens, "late": late, "warm": warm, "widths": sorted(widths), **counts}))


def watch(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts steps that are told before the last one that was told has been read."""
    counts = Counter(told=0, ahead=0, unread=0)
    send, read = Leader.send, Samples.read

    def counting_send(leader: Leader, kind: MessageKind, *arguments: Any) -> None:
        if kind is MessageKind.STEP:
            counts.update(told=1, ahead=counts["unread"] > 0)
            counts["unread"] += 1
        send(leader, kind, *arguments)

    def counting_read(samples: Samples) -> Any:
        counts["unread"] -= 1
        return read(samples)

    monkeypatch.setattr(Leader, "send", counting_send)
    monkeypatch.setattr(Samples, "read", counting_read)
    return counts


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        main(json.loads(sys.argv[1]), patch)
