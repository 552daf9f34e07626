"""Which part of a model each rank gets: everything, once, as near to its share as whole units allow."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import PlanError
from mlxr.compiler.parallel.split_for import split_for
from mlxr.compiler.spec.catalog import bundled_specs, find_spec
from mlxr.compiler.spec.change import Changes, changed
from mlxr.compiler.spec.divide_counts import Range, divide
from mlxr.compiler.spec.load import load_spec
from mlxr.compiler.spec.parallel import Parallel
from mlxr.compiler.spec.share import Share, shares
from mlxr_tests.few import few
from mlxr_tests.specs import small_spec

HIDDEN = 64


@given(weights=st.lists(st.floats(1e-3, 1), min_size=1, max_size=9), more=st.integers(0, 300))
def test_parts_are_as_near_to_the_weights_as_whole_numbers_can_be(weights: list[float], more: int) -> None:
    count = len(weights) + more
    parts = divide(count, weights)
    assert sum(parts) == count
    assert min(parts) >= 1
    wished = [count * weight / sum(weights) for weight in weights]
    if min(wished) >= 1:
        assert all(abs(part - wish) <= 1 for part, wish in zip(parts, wished, strict=True))
    if len(set(weights)) == 1:
        assert max(parts) - min(parts) <= 1


@st.composite
def splits(draw: st.DrawFn) -> tuple[Parallel, dict[str, Any]]:
    """A split, and the changes to a small spec that it suits."""
    tensor = draw(st.integers(1, 4))
    pipeline = draw(st.integers(1 if tensor > 1 else 2, 3))
    parts = tensor if tensor > 1 else pipeline
    raw = draw(st.none() | st.lists(st.integers(1, 5), min_size=parts, max_size=parts))
    fractions = None if raw is None else tuple(number / sum(raw) for number in raw)
    model: dict[str, Any] = {
        "model__hidden_size": HIDDEN,
        "model__vocab_size": draw(st.integers(8, 600)),
        "model__num_layers": draw(st.integers(pipeline, 7)),
        "model__tie_embeddings": draw(st.booleans()),
        "model__attention": draw(
            st.sampled_from([(12, 12), (12, 4), (8, 2), (12, 3), (8, 1)]).map(
                lambda heads: {"num_heads": heads[0], "num_kv_heads": heads[1], "head_dim": 32}
            )
        ),
        "model__mlp": draw(
            st.sampled_from(
                [
                    {"intermediate_size": 96},
                    {"intermediate_size": 104},
                    {"intermediate_size": 64, "experts": {"count": 5, "per_token": 2, "router": "softmax_topk"}},
                ]
            )
        ),
        "weights": {"default": draw(st.sampled_from(["f32", "q8_0"]))},
    }
    assume(model["weights"]["default"] == "f32" or model["model__mlp"]["intermediate_size"] % 32 == 0)
    return Parallel(tensor=tensor, pipeline=pipeline, shares=fractions), model


def covers(parts: list[Range], whole: int) -> bool:
    """Whether ranges cover a whole once, each with something."""
    ends = [0, *(end for _, end in parts)]
    return [first for first, _ in parts] == ends[:-1] and ends[-1] == whole and all(a < b for a, b in pairwise(ends))


def _shares(split: Parallel, model: dict[str, Any]) -> tuple[Share, ...]:
    try:
        return shares(small_spec(**model, parallel=split.model_dump()))
    except PlanError as error:
        assert "cannot be divided among" in str(error)
        assume(False)
    raise AssertionError


@given(drawn=splits())
def test_each_rank_has_its_part_of_everything(drawn: tuple[Parallel, dict[str, Any]]) -> None:
    split, model = drawn
    ranks = _shares(split, model)
    attention, mlp = model["model__attention"], model["model__mlp"]
    assert covers([ranks[stage * split.tensor].layers for stage in range(split.pipeline)], model["model__num_layers"])
    for stage in range(split.pipeline):
        own = [rank for rank in ranks if rank.stage == stage]
        assert [rank.tensor_rank for rank in own] == list(range(split.tensor))
        assert len({rank.layers for rank in own}) == 1
        assert covers([rank.heads[attention["num_heads"]] for rank in own], attention["num_heads"])
        assert covers([rank.vocabulary for rank in own], model["model__vocab_size"])
        ratio = attention["num_heads"] // attention["num_kv_heads"]
        for rank in own:
            queries = range(*rank.heads[attention["num_heads"]])
            keys = range(*rank.kv_heads[attention["num_kv_heads"]])
            assert {query // ratio for query in queries} == set(keys), "the KV heads that they read"
        if "experts" in mlp:
            assert covers([rank.experts[5] for rank in own], 5)
        else:
            width = mlp["intermediate_size"]
            assert covers([rank.columns[width] for rank in own], width)
            block = 32 if model["weights"]["default"] == "q8_0" else 1
            assert all(first % block == 0 for rank in own for first, _ in [rank.columns[width]])
    if split.shares is not None and split.tensor > 1 and attention["num_kv_heads"] >= split.tensor:
        for rank in ranks[: split.tensor]:
            wished = split.shares[rank.tensor_rank] * attention["num_kv_heads"]
            if min(split.shares) * attention["num_kv_heads"] >= 1:
                first, last = rank.kv_heads[attention["num_kv_heads"]]
                assert abs(last - first - wished) <= 1


@pytest.mark.parametrize(
    ("changes", "split", "message"),
    [
        (
            {"model__attention": {"num_heads": 3, "num_kv_heads": 3, "head_dim": 32}},
            {"tensor": 4},
            "the 1 query heads of a KV head cannot be divided among 2 ranks",
        ),
        (
            {
                "model__mlp": {
                    "intermediate_size": 64,
                    "experts": {"count": 3, "per_token": 2, "router": "softmax_topk"},
                }
            },
            {"tensor": 4},
            "3 experts cannot be divided among 4 ranks",
        ),
        (
            {"model__hidden_size": 256, "model__mlp__intermediate_size": 256, "weights": {"default": "q4_k"}},
            {"tensor": 2},
            "layers.0.mlp.down of 256 columns cannot be divided among 2 ranks: it is divided by 256 columns",
        ),
        (
            {
                "model__hidden_size": 256,
                "model__attention": {"num_heads": 6, "num_kv_heads": 6, "head_dim": 128},
                "model__mlp__intermediate_size": 512,
                "weights": {"default": "q4_k"},
            },
            {"tensor": 4},
            "6 KV heads cannot be divided among 4 ranks: layers.0.attention.o has blocks of 256 columns, those of 2",
        ),
    ],
    ids=["heads", "experts", "blocks-of-down", "blocks-of-heads"],
)
def test_what_cannot_be_divided_is_named(changes: dict[str, Any], split: dict[str, int], message: str) -> None:
    small = {"model__attention": {"num_heads": 8, "num_kv_heads": 4, "head_dim": 64}}
    with pytest.raises(PlanError, match="use fewer tensor ranks, stages instead") as error:
        compile_spec(small_spec(**small | changes, parallel=split), targets=("cpu",))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("split", "message"), [({"pipeline": 3}, "3 stages"), ({"pipeline": 2, "layers": (2, 1)}, "stages of 2, 1 layers")]
)
def test_a_split_that_no_spec_was_checked_with_is_refused_too(split: dict[str, Any], message: str) -> None:
    spec = small_spec().model_copy(update={"parallel": Parallel(**split)})
    with pytest.raises(PlanError, match=f"a model of 2 layers cannot be divided into {message}"):
        compile_spec(spec)


def test_stages_of_several_ranks_have_layers_as_their_budgets() -> None:
    budgets = ["6GiB", "2GiB", "3GiB", "1GiB"]
    ranks = shares(small_spec(model__num_layers=9, memory_budget=budgets, parallel={"tensor": 2, "pipeline": 2}))
    assert [rank.layers for rank in ranks] == [(0, 6), (0, 6), (6, 9), (6, 9)]
    assert [rank.vocabulary for rank in ranks[:2]] == [(0, 46), (46, 61)]


@pytest.mark.parametrize(("kind", "of_blocks"), [("layer", "rms"), (None, "layer")])
def test_a_layer_norm_over_all_heads_is_divided_by_stages_alone(kind: str | None, of_blocks: str) -> None:
    spec = small_spec(model__norm__kind=of_blocks, model__attention__qk_norm={"scope": "all", "kind": kind})
    with pytest.raises(PlanError, match="attention of layer 0 cannot be divided among 2 ranks: its layer norm needs"):
        shares(changed(spec, Changes(parallel=Parallel(tensor=2))))
    assert split_for(spec, 2) == Parallel(pipeline=2)


def test_split_for_takes_tensor_ranks_where_they_divide_the_model_and_else_stages() -> None:
    assert split_for(small_spec(), 2) == Parallel(tensor=2)
    one_expert_each = small_spec(
        model__num_layers=4, model__mlp__experts={"count": 3, "per_token": 2, "router": "softmax_topk"}
    )
    assert split_for(one_expert_each, 3) == Parallel(tensor=3)
    assert split_for(one_expert_each, 4) == Parallel(pipeline=4)
    with pytest.raises(PlanError) as error:
        split_for(one_expert_each, 5)
    assert "{tensor: 5}: " in str(error.value)
    assert "3 experts cannot be divided among 5 ranks" in str(error.value)
    assert "{pipeline: 5}: " in str(error.value)
    assert "pipeline has 5 stages, the model only 4 layers" in str(error.value)
    split = small_spec(parallel={"pipeline": 2})
    assert split_for(split, 2) == split.parallel
    with pytest.raises(PlanError, match="split over 2 ranks, and there are 3"):
        split_for(split, 3)


@pytest.mark.parametrize("name", few(sorted(bundled_specs()), ["llama-3.1-8b"]))
def test_two_ranks_have_half_of_the_parameters_each(name: str) -> None:
    spec = load_spec(find_spec(name))
    whole = compile_spec(spec, targets=("cpu",)).artifact.plan.first.memory.weights_bytes
    split = compile_spec(changed(spec, Changes(parallel=Parallel(tensor=2))), targets=("cpu",)).artifact.parallel
    assert split is not None
    for rank in split.ranks:
        assert rank.memory["cpu"].weights_bytes == pytest.approx(whole / 2, rel=0.02)
