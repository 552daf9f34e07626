"""Requests of every kind to a model over several processes: the answers are those of one process."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlxr.compiler.spec.load import dump_spec
from mlxr.compiler.spec.parallel import Parallel
from mlxr_tests.answers_rank import answers
from mlxr_tests.few import few
from mlxr_tests.ranks import run_ranks
from mlxr_tests.storyteller import tiny_spec

SPLITS: dict[str, dict[str, Any]] = {"tensor 2": {"tensor": 2}, "2 stages": {"pipeline": 2}, "tensor 3": {"tensor": 3}}
"""Of three ranks, two share a KV head, so that one has more queries for each of its KV heads."""


@pytest.mark.long
@pytest.mark.parametrize("split", few(SPLITS, ["tensor 2"]))
def test_answers_are_those_of_one_rank(split: str, tmp_path: Path) -> None:
    """A schema, seeds, a cached prompt, an arena that is too small, guesses from the text, a thought that is cut."""
    cache = {"dtype": "f32", "mode": "paged", "block_size": 16, "max_sequences": 4, "num_blocks": 34}
    spec = tiny_spec(cache=cache, compute="exact")
    parallel = Parallel(**SPLITS[split])
    parts = spec.model_copy(update={"parallel": parallel})
    (tmp_path / "spec.yaml").write_text(dump_spec(parts))
    ranks = run_ranks(parallel.size, ["-m", "mlxr_tests.answers_rank", str(tmp_path / "spec.yaml"), "cpu"])
    assert [rank.code for rank in ranks] == [0] * parallel.size, ranks
    split_over, whole = json.loads(ranks[0].stdout), answers(spec)
    for counters in (split_over.pop("counters"), whole.pop("counters")):
        assert counters["preemptions"] > 0 and counters["draft_tokens"] > 0, "how many drafts, clocks decide"
    assert split_over == whole
    assert {"name", "age"} == json.loads(whole["text"]).keys() and whole["cached tokens"] > 0
