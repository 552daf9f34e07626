"""What splitting a model over machines is predicted to give, on paper: nothing runs, and no machine is needed.

    python benchmarks/split_prediction.py

A model of Llama 70B's shape in 4 bits on 2 and 4 M4 Max, over Thunderbolt 5 and 10 Gb/s Ethernet, and Llama 8B in bf16
on 2 H200. The prediction is that of `mlxr inspect --predict --link NAME`; `mlxr/compiler/chips/` has the figures of
chips and links with their origins.
"""

import sys
from collections.abc import Iterator, Sequence

from mlxr.compiler.artifact import Chip
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.chips.link import Link, find_link
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.spec.catalog import find_spec
from mlxr.compiler.spec.load import dump_spec, load_spec, parse_spec
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.spec.parallel import Parallel
from mlxr.inspect.split.predict_split import SplitTimes, predict_split

CONTEXT, PROMPT = 512, 4096
_SIZE_70B = {
    "hidden_size": 8192,
    "num_layers": 80,
    "attention": {"num_heads": 64, "num_kv_heads": 8, "head_dim": 128},
    "mlp": {"intermediate_size": 28672},
}
_ASSUMED = """
Assumed: every launch reads its bytes at the memory's full bandwidth or computes at the chip's full rate, whichever
takes longer, and costs its launch; all machines are alike, and wait for each other only in messages. A message takes
the link's latency, its bytes by the link's bandwidth, and 30 us for the way from the GPU to the CPU and back
(predicted; NCCL: part of the latency). Nothing of a message is hidden behind compute. Sums gather what every rank
has: over TCP (ring) in n - 1 hops, one direction at a time; over RDMA (jaccl) in one, each machine has a cable to
every other one; with tensor 2 x pipeline 2 they go along the stage's line and back. Chunks of a prompt follow one
another through the stages. All stages busy: with as many batches under way as stages, which the runtime does not do.
"""


def main() -> int:
    """Prints the tables."""
    print(f"One sequence: a token after {CONTEXT}, and a prompt of {PROMPT} tokens.{_ASSUMED}")
    llama = load_spec(find_spec("llama-3.1-8b")).model_dump(mode="json")
    large = llama | {"name": "70b", "model": llama["model"] | _SIZE_70B, "memory_budget": None}
    large["model"]["attention"] = llama["model"]["attention"] | _SIZE_70B["attention"]
    large["model"]["mlp"] = llama["model"]["mlp"] | _SIZE_70B["mlp"]
    mac_links = [find_link(name) for name in ("tb5", "tb5-tcp", "10GbE")]
    mac_links.append(_slower(find_link("10GbE"), 300))
    large["weights"] = {"default": "affine4_g64_bf16"}
    _table("70B in 4 bits (4.5 with scales, as q4_k has), M4 Max", large, find_chip("m4-max"), (2, 4), mac_links)
    small = llama | {"name": "8b", "memory_budget": None}
    cards = [find_link("nvlink"), find_link("pcie5")]
    for chunk in (512, PROMPT):
        title = f"8B, bf16, H200, chunks of {chunk}"
        _table(title, small | {"prefill_chunk": chunk}, find_chip("h200"), (2,), cards)
    return 0


def _slower(link: Link, latency_us: float) -> Link:
    latency = link.latency_us.model_copy(update={"value": latency_us})
    return link.model_copy(update={"title": f"{link.title}, {latency_us:g} us", "latency_us": latency})


def _table(title: str, data: dict[str, object], chip: Chip, machines: Sequence[int], links: Sequence[Link]) -> None:
    print(f"### {title}\n")
    print("| machines | link | split | memory of each | decode | of one | all stages busy | prefill | of one |")
    print("|---|---|---|---|---|---|---|---|---|")
    single = next(_times(data, chip, None, [None]))
    print(_row("1", "-", single, single))
    for count in machines:
        splits = [(count, 1), (1, count), *([(count // 2, 2)] if count > 2 else [])]
        rows: dict[str, list[str]] = {link.title: [] for link in links}
        for tensor, pipeline in splits:
            split = Parallel(tensor=tensor, pipeline=pipeline)
            for link, times in zip(links, _times(data, chip, split, links), strict=True):
                rows[link.title].append(_row(str(count), link.title, times, single))
        print("\n".join(row for of_link in rows.values() for row in of_link))
    print()


def _times(
    data: dict[str, object], chip: Chip, split: Parallel | None, links: Sequence[Link | None]
) -> Iterator[SplitTimes]:
    spec = ModelSpec.model_validate(data).model_copy(update={"parallel": split})
    artifact = compile_spec(parse_spec(dump_spec(spec)), targets=("metal",), chip=chip).artifact
    for link in links:
        yield predict_split(artifact, link, chip, CONTEXT, 1, PROMPT)


def _row(machines: str, link: str, times: SplitTimes, single: SplitTimes) -> str:
    busy = f"{times.busy_rate:.1f}" if times.pipeline > 1 else "-"
    cells = (
        machines,
        link,
        times.name,
        f"{max(times.memory_bytes) / 2**30:.1f} GiB",
        f"{times.decode_rate:.1f}",
        f"{times.decode_rate / single.decode_rate:.2f} x",
        busy,
        f"{times.prefill_rate:.0f}",
        f"{times.prefill_rate / single.prefill_rate:.2f} x",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
