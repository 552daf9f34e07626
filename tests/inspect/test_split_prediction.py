"""Predicted times of a model that is split: messages and steps counted by hand, and when splitting pays."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mlxr.cli import main
from mlxr.compiler.artifact import Chip
from mlxr.compiler.artifact.parallel.parallel_plan import Message
from mlxr.compiler.chips.link import Link, find_link, known_links, links_of
from mlxr.compiler.errors import PlanError, SpecError
from mlxr.compiler.ir.ops.collectives import CollectiveKind
from mlxr.inspect.roofline import roofline
from mlxr.inspect.split.compare_splits import compare_splits, predicted_slower
from mlxr.inspect.split.message_time import MessageTimes
from mlxr.inspect.split.predict_split import RankTime, SplitTimes, predict_split, rate_text
from mlxr_tests.specs import compiled, small_spec

HIDDEN, VOCAB = 48, 61


def link(backend: str = "ring", latency: float = 10.0, bandwidth: float = 1.0, handover: float | None = None) -> Link:
    figures: dict[str, Any] = {"latency_us": latency, "bandwidth_gb_per_s": bandwidth}
    figures |= {} if handover is None else {"handover_us": handover}
    data = {name: {"value": value, "origin": "predicted"} for name, value in figures.items()}
    return Link.model_validate({"name": "toy", "title": "a toy", "backend": backend, **data})


def chip(bandwidth: float) -> Chip:
    """A chip without launch costs, which only its memory bounds."""
    figures = {"bandwidth_gb_per_s": bandwidth, "f32_tflops": 1e6, "matmul_tflops": 1e6, "launch_us": 1e-6}
    data = {name: {"value": value, "origin": "predicted"} for name, value in (figures | {"cache_mib": 1.0}).items()}
    return Chip.model_validate({"name": "toy", "title": "Toy", "figures": data})


@pytest.mark.parametrize(
    ("backend", "tensor", "pipeline", "kind", "time_us"),
    [
        # 2,000 bytes at 1 GB/s are 2 us, and a message 10 us.
        ("ring", 3, 1, "all_sum", 2 * 12),
        ("jaccl", 3, 1, "all_sum", 12),
        ("nccl", 2, 1, "all_sum", 12),
        ("nccl", 3, 2, "all_sum", 14),
        ("ring", 2, 2, "all_sum", 12),
        ("jaccl", 2, 2, "all_sum", 2 * 12),
        ("ring", 3, 2, "all_sum", 4 * 12),
        ("ring", 1, 2, "send", 12),
        ("ring", 2, 2, "send", 2 * 12),
        ("nccl", 1, 2, "send", 12),
        ("nccl", 3, 2, "send", 13),
        ("ring", 2, 2, "receive", 0),
        # 1,000 and 500 columns of a row: 4,000 and 2,000 bytes.
        ("ring", 2, 1, "gather", 14),
        ("ring", 2, 2, "gather", 14 + 16),
        ("nccl", 2, 2, "gather", 10 + 8),
    ],
)
def test_a_message(backend: str, tensor: int, pipeline: int, kind: CollectiveKind, time_us: float) -> None:
    bounds = (0, 1000, 1500)
    message = Message(op="it", kind=kind, columns=250, row_bytes=1000, dim="tokens")
    rows = 1 if kind == "gather" else 2
    times = MessageTimes(link(backend), tensor, pipeline, bounds)
    assert times.time_us(message, rows) == pytest.approx(time_us)
    assert times.time_us(message, 0) == 0
    slower = MessageTimes(link(backend, handover=5), tensor, pipeline, bounds)
    assert slower.time_us(message, rows) == pytest.approx(time_us + 5 * (kind != "receive"))


def test_a_long_sum_of_two_ranks_along_a_line_goes_there_and_back() -> None:
    message = Message(op="it", kind="all_sum", columns=4, row_bytes=16, dim="tokens")
    times = MessageTimes(link(), 2, 2, (0, 1, 2))
    assert times.time_us(message, 1024) == pytest.approx(10 + 16.384)
    assert times.time_us(message, 2000) == pytest.approx(2 * (10 + 32))


@pytest.mark.parametrize(("ranks", "pipeline"), [(2, 1), (4, 1), (2, 2)])
def test_short_sums_between_cards_take_our_own_kernel(ranks: int, pipeline: int) -> None:
    """It exists for one stage; long ones are NCCL's."""
    message = Message(op="it", kind="all_sum", columns=4096, row_bytes=8192, dim="tokens")
    nvlink = find_link("nvlink")
    assert nvlink.own_sum_us is not None
    times, us_of_row = MessageTimes(nvlink, ranks, pipeline, (0, 1, 2)), (ranks - 1) * 8192 / 237e3
    short, long = (times.time_us(message, rows) - rows * us_of_row for rows in (512, 513))
    own = nvlink.own_sum_us.value if pipeline == 1 else nvlink.latency_us.value
    assert (short, long) == (pytest.approx(own), pytest.approx(nvlink.latency_us.value))


def test_messages_of_a_decode_step() -> None:
    """Two sums a layer and one after the embedding, of a row in f32, and the widest part of the logits."""
    artifact = compiled(small_spec(parallel={"tensor": 2}))
    on = chip(bandwidth=1)
    times = predict_split(artifact, link(), on, 20, 1)
    assert times.decode[0].messages_us == pytest.approx(5 * (10 + 4 * HIDDEN / 1e3) + 10 + 4 * 31 / 1e3)
    computes = [roofline(artifact.of_rank(rank), on, 20, 1)[0].predicted_us for rank in range(2)]
    assert times.decode_us == pytest.approx(max(computes) + times.decode[0].messages_us)
    # 40 tokens are chunks of 32 and of 8: five sums of each, and one row of logits.
    sums = 5 * (2 * 10 + 40 * 4 * HIDDEN / 1e3)
    assert times.prompt == 40
    assert times.of_prompt(1).messages_us == pytest.approx(sums + 10 + 4 * 31 / 1e3)


def test_stages_follow_one_another() -> None:
    def times(*totals: float) -> Sequence[RankTime]:
        return tuple(RankTime(total, 0, 0) for total in totals)

    split = SplitTimes(1, 2, (5, 6), 4, tuple(times(2, 3)), 2000, tuple(map(tuple, [times(2, 3), times(2, 3)])))
    assert (split.decode_us, split.slowest_stage_us) == (5, 3)
    assert split.prefill_us == 2 + 3 + 3, "the second chunk's first stage beside the first one's second"
    assert split.busy_rate == pytest.approx(4e6 / 3)
    assert [rate_text(rate) for rate in (7468.7, 100.4, 58.59, 0.5)] == ["7469", "100", "58.6", "0.5"]
    assert split.name == "pipeline 2"


def test_splitting_pays_over_a_fast_link_only() -> None:
    artifact = compiled(small_spec(parallel={"tensor": 2}, model__num_layers=4))
    on = chip(bandwidth=0.01)
    fast, slow = link(latency=1e-3, bandwidth=1e3), link(latency=1e5)
    pays = compare_splits(artifact, fast, on, 20, 1)
    assert pays.verdicts[0].startswith("decode: tensor 2 pays, 1.")
    assert pays.own.decode_rate > 1.7 * pays.single.decode_rate
    assert [times.name for times in pays.all] == ["one machine", "tensor 2", "pipeline 2"]
    assert pays.own.on_one_machine().decode_us == pytest.approx(pays.single.decode_us, rel=0.05)
    assert predicted_slower(artifact, fast, on) is None
    loses = compare_splits(artifact, slow, on, 20, 1)
    assert "does not pay" in loses.verdicts[0]
    assert "best split: pipeline 2" in loses.verdicts[0], "two messages instead of ten"
    message = predicted_slower(artifact, slow, on)
    assert message is not None
    assert "one Toy alone" in message
    small = compiled(small_spec(parallel={"tensor": 2}, model__num_layers=4, memory_budget="900KiB"))
    assert predicted_slower(small, slow, on) is None, "one machine does not hold it"
    assert compare_splits(small, slow, on, 20, 1).verdicts[-1].startswith("one machine would need")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "artifact"
    compiled(small_spec(parallel={"tensor": 3})).write(folder)
    command = ["inspect", str(folder), "--predict", "--chip", "m4-max"]
    assert main([*command, "--link", "10gbe", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["link"]["name"], shown["chip"]["name"], shown["own"]) == ("10GbE", "m4-max", "tensor 3")
    assert len(shown["splits"][1]["ranks"]) == 3
    assert "2 layers" in shown["impossible"]["tensor 1 x pipeline 3"]
    assert main([*command, "--link", "tb5"]) == 0
    assert "tensor 3 (this one)" in capsys.readouterr().out
    assert main(command) == 1
    assert "name the link between the ranks with --link: loopback, 1GbE" in capsys.readouterr().err
    assert main([*command, "--rank", "1"]) == 0
    assert main([*command, "--rank", "1", "--link", "tb5"]) == 1
    whole = tmp_path / "whole"
    compiled(small_spec()).write(whole)
    assert main(["inspect", str(whole), "--link", "tb5"]) == 1
    assert "leave out --link" in capsys.readouterr().err


def test_links() -> None:
    assert find_link("TB5").backend == "jaccl"
    with pytest.raises(PlanError, match=r"known links are .* did you mean .nvlink"):
        find_link("nvlnk")
    for known in known_links().values():
        for figure in (known.latency_us, known.bandwidth_gb_per_s):
            assert figure.note or known.name.endswith("GbE"), known.name
    text = "about: toy\nlinks:\n  a: {title: A, backend: pigeons, latency_us: {value: 1, origin: measured}}"
    with pytest.raises(SpecError, match=r"bad.yaml:3:.*backend"):
        links_of(text, "bad.yaml")
