"""The record of load options: what it checks, and how it meets what a model was registered with."""

from pathlib import Path
from typing import Any

import pytest

from mlxr.compiler.errors import RequestError
from mlxr.compiler.spec.change import Changes, changed
from mlxr.loading.options import NO_OPTIONS, LoadOptions
from mlxr.runtime.cache.tiers.tier_sizes import TierSizes
from mlxr_tests.specs import small_spec

REGISTERED = LoadOptions(Path("w"), Path("t"), "cpu", 3, Changes(context=64), "{{ registered }}")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (NO_OPTIONS, REGISTERED),
        (LoadOptions(threads=2), LoadOptions(Path("w"), Path("t"), "cpu", 2, Changes(context=64), "{{ registered }}")),
        (
            LoadOptions("own", host="reference", changes=Changes(sequences=4), template="{{ own }}"),
            LoadOptions("own", Path("t"), "reference", None, Changes(64, sequences=4), "{{ own }}"),
        ),
    ],
)
def test_what_is_registered_holds_where_the_caller_says_nothing(given: LoadOptions, expected: LoadOptions) -> None:
    assert given.over(REGISTERED) == expected
    assert given.over(NO_OPTIONS) == given


def test_a_draft_has_the_place_of_its_model_and_nothing_else() -> None:
    changes = Changes(context=64, compute="exact", trust_artifact=True)
    target = LoadOptions(
        "w", host="cpu", threads=2, changes=changes, tiers=TierSizes(1), draft="small", ranks=2, most_bytes=5
    )
    draft = LoadOptions(
        host="cpu", threads=2, changes=Changes(sequences=3, trust_artifact=True), shrink_arena=True, mtp="off", ranks=1
    )
    assert target.for_draft(3) == draft


@pytest.mark.parametrize(
    "bad", [{"weights": 1}, {"tokenizer": 1}, {"host": None}, {"threads": 1.5}, {"changes": {}}, {"draft": 1}]
)
def test_a_wrong_type_is_told_by_the_name_of_the_option(bad: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"^{next(iter(bad))} is "):
        LoadOptions(**bad)
    with pytest.raises(RequestError, match="both guess tokens"):
        LoadOptions(draft="small", prompt_lookup=True)


def test_with_tiers_layers_that_see_a_window_keep_all_tokens() -> None:
    assert LoadOptions(tiers=TierSizes(memory_bytes=1)).changes.keep_windows and not NO_OPTIONS.changes.keep_windows
    windowed, plain = small_spec(model__attention__sliding_window=8), small_spec()
    assert changed(windowed, Changes(keep_windows=True)).cache.keep_windows
    assert changed(plain, Changes(keep_windows=True)) == plain
