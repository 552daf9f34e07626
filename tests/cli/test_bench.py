"""`mlxr bench`: what it prints, what it counts, and what it refuses. No speed is judged here."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxr
from mlxr.bench.traffic import cache_bytes, weight_bytes
from mlxr.cli import main
from mlxr.runtime.batch import Batch
from mlxr.runtime.hosts import reference
from mlxr.runtime.hosts.host import Logits
from mlxr.runtime.hosts.reference import ReferenceHost
from mlxr_tests.family_specs import family_spec
from mlxr_tests.specs import compiled
from mlxr_tests.storyteller import GOLDEN, Q8_0

TINY = GOLDEN / "tiny-Q4_K_M.gguf"
SHORT = ["--prompt-tokens", "7", "--decode-tokens", "3"]


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
    assert shown["planned_bytes"] == 71_329_792 + 2 * 6 * 1024 * 2 * 64 * 4
    assert shown["peak_memory_bytes"] > 20 << 20
    assert shown["launches_per_decode_step"] == 106, "one for each op of the unfused graph"


def test_decoding_is_pipelined_where_generation_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step takes the token of the last one before that is read; the figures are of as many steps."""
    arguments = ["storyteller", "--host", "reference"]
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
    assert log[-6:] == ["launch", "ahead", "read", "ahead", "read", "read"], "three steps"
    assert ahead.keys() == plain.keys()
    assert ahead["launches_per_decode_step"] == plain["launches_per_decode_step"]


def test_text_has_the_same_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "storyteller", "--host", "reference", *SHORT]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown["prefill_tokens_per_second"].endswith(" tokens/s")
    assert shown["decode_tokens_per_second"].endswith(" tokens/s")
    assert shown["planned_bytes"] == "77621248 (74.0 MiB)"
    assert shown["threads"] == "-"


def test_on_the_cpu_host(capsys: pytest.CaptureFixture[str]) -> None:
    shown = bench(capsys, str(TINY), "--host", "cpu", "--threads", "1", "--compute", "exact", "--batch", "2")
    told = {"model": "tiny-Q4_K_M", "host": "cpu", "threads": 1, "compute": "exact", "weights": "q4_k", "batch": 2}
    assert told.items() <= shown.items()
    assert shown["cache"] == "f16, paged", "two sequences share an arena"
    program = mlxr.compile("storyteller").plan.cpu
    assert program is not None
    assert shown["launches_per_decode_step"] == len(program.step("decode").launches) - 4 * 5, "two layers, not six"


@pytest.mark.long
def test_an_imported_model_is_compiled_for_the_workload(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", str(Q8_0), "--host", "reference", "--prompt-tokens", "2", "--decode-tokens", "1"]
    assert main([*arguments, "--context", "1023", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["context"] == 1023


def test_an_imported_model_has_no_more_than_its_own_context(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", str(Q8_0), "--host", "reference", "--prompt-tokens", "2", "--decode-tokens", "1"]
    assert main([*arguments, "--context", "1024"]) == 1
    assert "the model's own context is 1024 tokens; 1025 are asked for" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["storyteller", "--prompt-tokens", "0"], "--prompt-tokens is 0; expected at least 1"),
        (["storyteller", "--decode-tokens", "0"], "--decode-tokens is 0; expected at least 1"),
        (["storyteller", "--context", "-1"], "--context is -1; expected at least 0"),
        (["storyteller", "--batch", "0"], "--batch is 0; expected at least 1"),
        (["storyteller", "--context", "1000"], "a sequence would have 1064 tokens, the context is 1024"),
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


def test_a_bundled_model_gets_as_many_sequences_as_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    shown = bench(capsys, "storyteller", "--host", "reference", "--batch", "3")
    assert shown["batch"] == 3
    assert shown["planned_bytes"] == 71_329_792 + 3 * 2 * 6 * 1024 * 2 * 64 * 4


def test_traffic_counts_each_weight_once_and_of_the_table_only_rows() -> None:
    artifact = mlxr.compile("tinyllama-1.1b")
    parameters = 22 * (2048 * (2048 + 2 * 256 + 2048 + 3 * 5632)) + 32000 * 2048
    norms = 45 * 2048
    for host in ("metal", "cpu"):
        one, four = weight_bytes(artifact, host), weight_bytes(artifact, host, 4)
        assert one == 2 * parameters + 4 * norms + 2 * 2048
        assert four - one == 3 * 2 * 2048
    assert cache_bytes(artifact.plan.arena, 10) == 10 * 22 * 2 * 4 * 64 * 2


def test_a_tied_table_is_read_whole() -> None:
    artifact = mlxr.compile("storyteller")
    assert weight_bytes(artifact, "metal") == artifact.plan.memory.weights_bytes


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


def test_a_folder_as_hugging_face_lays_it_out(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).parents[1] / "data/storyteller"
    shown = bench(capsys, str(folder), "--host", "reference")
    assert (shown["model"], shown["weights"]) == ("storyteller", "bf16")
