"""Types of the cache that not every model may have."""

import pytest
from pydantic import ValidationError

from mlxr_tests.family_specs import FAMILY_SPECS
from mlxr_tests.specs import small_spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__attention__head_dim": 40}, "q4 with heads of 40 elements, which is not a multiple of 32"),
        ({"model__attention__head_dim": 64, "model__attention__v_dim": 72}, "q4 with heads of 72 elements"),
        (FAMILY_SPECS["latent"], "q4 with latent attention: latent attention keeps one row for keys and values"),
    ],
    ids=["keys", "values", "latents"],
)
def test_q4_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        small_spec(**changes | {"cache__dtype": "q4"})


def test_q4_counts_the_bytes_of_its_rows() -> None:
    """Two layers of two KV heads of 64: a token has 2 * 2 * (68 + 52) bytes."""
    sizes = {"model__attention__head_dim": 64, "model__num_layers": 2, "cache__num_blocks": None}
    small_spec(**sizes, cache__dtype="q4", cache__block_size=4, cache__memory_budget=4 * 2 * 2 * (68 + 52))
    with pytest.raises(ValidationError, match="memory_budget of 1919 bytes is less than one block of 1920 bytes"):
        small_spec(**sizes, cache__dtype="q4", cache__block_size=4, cache__memory_budget=1919)
