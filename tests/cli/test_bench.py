"""`mlxr bench`: what it prints, what it counts, and what it refuses. No speed is judged here."""

import json
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxr
from mlxr.bench import measure
from mlxr.bench.lengths import LengthRange
from mlxr.bench.measure import WarmUp
from mlxr.bench.traffic import cache_bytes, weight_bytes
from mlxr.bench.workload import Workload
from mlxr.cli import main
from mlxr.cli.bench import KEYS
from mlxr.compiler.artifact import DType, LayerGroup
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.model import Model
from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.host import Logits
from mlxr.runtime.hosts.reference import host as reference
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr_tests.family_specs import family_spec
from mlxr_tests.kv_arena import kv_arena
from mlxr_tests.specs import compiled
from mlxr_tests.storyteller import GOLDEN, Q8_0

TINY = GOLDEN / "tiny-Q4_K_M.gguf"
WEIGHT_BYTES = (17_832_448 - 13 * 512) * 34 // 32 + 13 * 512 * 4
"""Of the bundled model: matrices in Q8_0, norms in f32."""
SHORT = ["--prompt-tokens", "7", "--decode-tokens", "3"]


@pytest.fixture(autouse=True)
def one_warm_up_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "AGREEMENT", 1e9)
    monkeypatch.setattr(measure, "LEAST_SECONDS", 0.0)


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["bench", *arguments, *SHORT, "--json"]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown


def test_json_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    shown = bench(capsys, "storyteller", "--host", "reference", "--context", "5", "--batch", "1")
    told = {"model": "storyteller", "host": "reference", "threads": None, "compute": "fast", "context": 5, "batch": 1}
    assert told.items() <= shown.items()
    assert (shown["prompt_tokens"], shown["decode_tokens"]) == (7, 3)
    for name in ("prefill_tokens_per_second", "decode_tokens_per_second", "load_seconds", "decode_step_ms"):
        assert shown[name] > 0
    assert shown["time_to_first_token_seconds"] == pytest.approx(7 / shown["prefill_tokens_per_second"])
    first = [shown[f"time_to_first_token_{name}seconds"] for name in ("min_", "", "p95_", "max_")]
    assert first == sorted(first) and shown["prompt_lengths"] == [7] * 5
    assert shown["decode_step_min_ms"] <= shown["decode_step_ms"] <= shown["decode_step_max_ms"]
    assert 0 < shown["decode_cpu_ms"] <= 1.01 * shown["decode_step_max_ms"], "a thread uses no more than passes"
    assert shown["warm_up_runs"] >= 4 and isinstance(shown["warm_up_agreed"], bool)
    assert shown["planned_bytes"] == WEIGHT_BYTES + 2 * 6 * 1024 * 2 * 64 * 2
    assert shown["peak_memory_bytes"] > 20 << 20
    assert shown["launches_per_decode_step"] == 106, "one for each op of the unfused graph"


def test_decoding_is_pipelined_where_generation_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step takes the token of the last one before that is read; the figures are of as many steps."""
    arguments = [str(TINY), "--host", "reference"]
    plain = bench(capsys, *arguments)
    log: list[str] = []

    class Pipelined(ReferenceHost):
        pipelines = True

        def step(self, batch: Batch) -> mx.array:
            log.append("ahead" if isinstance(batch.tokens, mx.array) else "launch")
            return super().step(batch)

        def read(self, result: Logits) -> np.ndarray:
            found = super().read(result)
            if found.dtype == np.int32:
                log.append("read")
            return found

    monkeypatch.setattr(reference, "ReferenceHost", Pipelined)
    ahead = bench(capsys, *arguments)
    steps = ["launch", *["ahead", "read"] * 4]
    events = [event for event, _ in groupby(log)]  # tokens and the greatest logits may be read apart
    assert events[-len(steps) :] == steps, "a prompt, then three steps; one more is under way at both ends"
    assert ahead.keys() == plain.keys()
    assert ahead["launches_per_decode_step"] == plain["launches_per_decode_step"]


@pytest.mark.long
def test_text_has_the_same_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "storyteller", "--host", "reference", *SHORT]) == 0
    shown = {line[:32].rstrip(): line[33:] for line in capsys.readouterr().out.splitlines()}
    assert shown["prefill tokens per second"].endswith(" tokens/s")
    assert shown["decode tokens per second"].endswith(" tokens/s")
    assert shown["planned bytes"] == "22112256 (21.1 MiB)"
    assert shown["threads"] == "-"


def test_on_the_cpu_host(capsys: pytest.CaptureFixture[str]) -> None:
    shown = bench(capsys, str(TINY), "--host", "cpu", "--threads", "1", "--compute", "exact", "--batch", "2")
    told = {"model": "tiny-Q4_K_M", "host": "cpu", "threads": 1, "compute": "exact", "weights": "q4_k", "batch": 2}
    assert told.items() <= shown.items()
    assert shown["cache"] == "f16, paged", "two sequences share an arena"
    program = mlxr.compile("storyteller", changes=mlxr.Changes(compute="exact")).plan.programs["cpu"]
    assert shown["launches_per_decode_step"] == len(program.phase("decode").launches) - 4 * 6, (
        "two layers of six launches, not six"
    )


@pytest.mark.long
def test_an_imported_model_is_compiled_for_the_workload(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", str(Q8_0), "--host", "reference", "--prompt-tokens", "2", "--decode-tokens", "1"]
    assert main([*arguments, "--context", "1021", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["context"] == 1021


def test_an_imported_model_has_no_more_than_its_own_context(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", str(Q8_0), "--host", "reference", "--prompt-tokens", "2", "--decode-tokens", "1"]
    assert main([*arguments, "--context", "1022"]) == 1
    told = "own context is 1024 tokens; 1025 are asked for, by --context 1022 and --decode-tokens 1"
    assert told in capsys.readouterr().err
    assert main(["bench", str(Q8_0), "--host", "reference", "--lengths", "300-1023"]) == 1
    assert "1024 tokens; 1025 are asked for, by --lengths 300-1023" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["storyteller", "--prompt-tokens", "0"], "--prompt-tokens is 0; expected at least 1"),
        (["storyteller", "--decode-tokens", "0"], "--decode-tokens is 0; expected at least 1"),
        (["storyteller", "--context", "-1"], "--context is -1; expected at least 0"),
        (["storyteller", "--batch", "0"], "--batch is 0; expected at least 1"),
        (
            ["storyteller", "--context", "1000"],
            "--context 1000 and --decode-tokens 64: a sequence would have 1066 tokens",
        ),
        (
            ["storyteller", "--prompt-tokens", "1023"],
            "--prompt-tokens 1023: a sequence would have 1025 tokens, the con",
        ),
        (
            ["storyteller", "--lengths", "20-1023"],
            "--lengths 20-1023: a sequence would have 1025 tokens, the context is",
        ),
        (["storyteller", "--lengths", "700-300"], "--lengths is 700-300; expected the smaller number first: 300-700"),
        (["storyteller", "--lengths", "0-5"], "--lengths is 0-5; a prompt has at least 1 token"),
        (["storyteller", "--lengths", "abc"], "--lengths is 'abc'; expected the shortest and the longest prompt"),
        (["storyteller", "--lengths", ""], "--lengths is ''; expected the shortest"),
        (["storyteller", "--lengths", "10-14"], "which has 5 lengths that were not used yet; 6 are needed"),
        (["storyteller", "--prompts", "4"], "--prompts is 4; expected at least 5, or 0 to measure decoding only"),
        (["storyteller", "--seed", "-1"], "--seed is -1; expected at least 0"),
        (["storyteller", "--threads", "0", "--host", "cpu"], "thread"),
        (["storyteller", "--threads", "1000000", "--host", "cpu"], "thread"),
        (["tinyllama-1.1b"], "comes without weights"),
    ],
)
def test_faulty_input_gives_a_message_and_1(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    host = [] if "--host" in arguments else ["--host", "reference"]
    assert main(["bench", *arguments, *host]) == 1
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


def lengths_of_prompts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list to which the lengths of all prompts are added."""
    seen: list[int] = []
    start = Model.start

    def noting(self: Model, prompts: Any, **options: Any) -> Any:
        seen.extend(len(prompt) for prompt in prompts)
        return start(self, prompts, **options)

    monkeypatch.setattr(Model, "start", noting)
    return seen


def test_prompts_of_unseen_lengths(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = lengths_of_prompts(monkeypatch)
    arguments = [str(TINY), "--host", "reference", "--lengths", "9-20", "--prompts", "6", "--decode-tokens", "2"]
    assert main(["bench", *arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    lengths = shown["prompt_lengths"]
    assert shown["prompt_tokens"] is None
    assert len(lengths) == len(set(lengths)) == 6 and all(9 <= length <= 20 for length in lengths)
    warm_up, *_ = seen
    assert warm_up not in lengths and seen == [warm_up, warm_up, *lengths, 1, 1, 1, 1], (
        "each first fills the prefix cache"
    )


def test_decoding_alone_after_several_contexts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = lengths_of_prompts(monkeypatch)
    arguments = [str(TINY), "--host", "reference", "--prompts", "0", "--context", "5,9", "--decode-tokens", "2"]
    assert main(["bench", *arguments, "--prompt-tokens", "1000", "--json"]) == 0, "longer than any sequence"
    shown = json.loads(capsys.readouterr().out)
    assert [figures["context"] for figures in shown] == [5, 9]
    assert seen == [*[5] * (1 + 2 + 1), *[9] * (1 + 2 + 1)], "each first fills the prefix cache, and warms up twice"
    for figures in shown:
        assert figures["decode_tokens_per_second"] > 0
        assert figures["prompt_tokens"] is figures["time_to_first_token_seconds"] is None
        assert figures["prompt_lengths"] == []
    assert main(["bench", *arguments]) == 0
    text = capsys.readouterr().out
    assert text.count("prefill tokens per second        -\n") == text.count("prompt lengths                   -\n") == 2


@pytest.mark.parametrize("batch", [1, 3])
def test_no_length_is_drawn_twice(batch: int) -> None:
    work = Workload(lengths=LengthRange(300, 330), prompts=5, batch=batch)
    work.check()
    drawn = work.draw_lengths()
    assert [len(some) for some in drawn.together] == [3] * 5 * (batch > 1)
    every = [drawn.warm_up, *drawn.single, *(length for some in drawn.together for length in some)]
    assert len(every) == len(set(every)) and min(every) >= 300 and max(every) <= 330
    assert drawn == work.draw_lengths() != Workload(lengths=work.lengths, batch=batch, seed=2).draw_lengths()
    with pytest.raises(RequestError, match="300-330, which has 31 lengths that were not used yet; 36 are needed"):
        Workload(lengths=work.lengths, batch=6).check()


def test_sequences_that_are_read_first_have_room_to_wait_for_the_last() -> None:
    work = Workload(7, decode_tokens=3, context=100, batch=4)
    assert work.needs(54)[0] == 100 + 1 + 3 + 1 + 8, "400 tokens in steps of 50, and 4 that decode"
    assert Workload(7, decode_tokens=3, context=100).needs(54)[0] == 105


def test_warming_up_ends_when_two_runs_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "AGREEMENT", 0.05)
    times = iter([9.0, 5.0, 4.0, 4.19, 1.0])
    warm_up = WarmUp()
    warm_up.repeat(lambda: next(times))
    assert (warm_up.runs, warm_up.agreed) == (4, True)
    growing = iter(range(1, 100))
    warm_up.repeat(lambda: 1.1 ** next(growing))
    assert (warm_up.runs, warm_up.agreed) == (4 + 10, False)
    monkeypatch.setattr(measure, "_MOST_SECONDS", -1.0)
    slow = WarmUp()
    slow.repeat(lambda: next(growing))
    assert (slow.runs, slow.agreed) == (2, False), "two runs in any case"


def test_warming_up_lasts_until_clocks_have_risen(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.2, 0.4, 0.6, 0.8])
    monkeypatch.setattr(measure, "LEAST_SECONDS", 0.5)
    monkeypatch.setattr(measure, "MOST_RUNS", 2)
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
    warm_up = WarmUp()
    warm_up.repeat(lambda: 0.2)
    assert (warm_up.runs, warm_up.agreed) == (4, True)


def test_figures_that_vary_are_called_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for agreement, agreed in ((-1.0, False), (1e9, True)):
        monkeypatch.setattr(measure, "AGREEMENT", agreement)
        assert main(["bench", str(TINY), "--host", "reference", *SHORT, "--json"]) == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out)["warm_up_agreed"] is agreed
        assert ("no two warm-up runs in a row agreed within 5 %" in shown.err) is not agreed


def test_every_figure_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    explained = {name for names in KEYS for name in names.split(", ")}
    spread = {"decode_step_min_ms", "decode_step_max_ms"}
    spread |= {f"time_to_first_token_{name}_seconds" for name in ("min", "max", "p95")}
    assert bench(capsys, str(TINY), "--host", "reference").keys() == explained | spread


def test_prompt_lengths_are_said_in_one_way(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["bench", "storyteller", "--lengths", "3-9", "--prompt-tokens", "5"])
    assert error.value.code == 2
    with pytest.raises(RequestError, match="give one of them"):
        Workload(5, lengths=LengthRange(3, 9)).check()


@pytest.mark.long
def test_a_bundled_model_gets_as_many_sequences_as_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    shown = bench(capsys, "storyteller", "--host", "reference", "--batch", "3")
    assert shown["batch"] == 3
    assert shown["planned_bytes"] == WEIGHT_BYTES + 3 * 2 * 6 * 1024 * 2 * 64 * 2


def test_traffic_counts_each_weight_once_and_of_the_table_only_rows() -> None:
    artifact = mlxr.compile("tinyllama-1.1b")
    parameters = 22 * (2048 * (2048 + 2 * 256 + 2048 + 3 * 5632)) + 32000 * 2048
    norms = 45 * 2048
    for host in ("metal", "cpu"):
        one, four = weight_bytes(artifact, host), weight_bytes(artifact, host, 4)
        assert one == 2 * parameters + 4 * norms + 2 * 2048
        assert four - one == 3 * 2 * 2048
    assert cache_bytes(artifact.plan.arena, 10) == 10 * 22 * 2 * 4 * 64 * 2
    assert cache_bytes(artifact.plan.arena, 10, 3) == 3 * cache_bytes(artifact.plan.arena, 10)


def test_of_layers_with_a_window_traffic_counts_what_is_in_it() -> None:
    arena = kv_arena("block", "paged", 40, 3, 16, 2, 32, DType.F32, 40, 2, 640)
    full, windowed = replace(arena.groups[0], layers=(1,)), LayerGroup((0, 2), 20, 40, 64)
    arena, row = replace(arena, groups=(full, windowed)), 2 * 2 * 32 * 4
    assert cache_bytes(arena, 50, 2) == 2 * 3 * 50 * row
    assert cache_bytes(arena, 500, 2) == 2 * (500 + 2 * 64) * row


def test_a_tied_table_is_read_whole() -> None:
    artifact = mlxr.compile("storyteller")
    assert weight_bytes(artifact, "metal") == artifact.plan.first.memory.weights_bytes


def test_of_experts_only_the_chosen_are_read() -> None:
    experts = {"count": 4, "per_token": 1, "router": "softmax_topk"}
    spec = family_spec("plain", model__mlp={"intermediate_size": 88, "experts": experts})
    of_one = spec.model.num_layers * 3 * spec.model.hidden_size * 88 * 4
    row_of_table = spec.model.hidden_size * 4
    for target in ("metal", "cpu"):
        artifact = compiled(spec, target=target)
        one, two, four, eight = (weight_bytes(artifact, target, rows) for rows in (1, 2, 4, 8))
        assert two - one == of_one + row_of_table
        assert four - two == 2 * (of_one + row_of_table)
        assert eight - four == 4 * row_of_table


def test_help_says_where_decoding_starts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    assert "in the cache when decoding starts" in capsys.readouterr().out


@pytest.mark.long
def test_a_folder_as_hugging_face_lays_it_out(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).parents[1] / "data/storyteller"
    shown = bench(capsys, str(folder), "--host", "reference")
    assert (shown["model"], shown["weights"]) == ("storyteller", "bf16")
