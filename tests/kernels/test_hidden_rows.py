"""Steps that give hidden rows in place of logits: against the reference, and against the logits of the same model."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr_tests.arenas import nan_arena
from mlxr_tests.few import few
from mlxr_tests.host_pair import HostPair, logits_of
from mlxr_tests.specs import compiled, floats, small_spec
from mlxr_tests.tolerances import check_logits

pytestmark = pytest.mark.usefixtures("kernel_host")

TARGETS = ("cpu", "metal")
CASES: dict[str, dict[str, Any]] = {
    "bf16": {"activation_dtype": "bf16", "cache__dtype": "bf16", "weights__default": "bf16", "weights__norm": "bf16"},
    "layer norm": {"model__norm": {"kind": "layer", "bias": True}, "model__tensor_names": "canonical"},
    "deterministic": {"deterministic": True},
}


def artifact(target: str, **changes: Any) -> Artifact:
    return compiled(small_spec(output="hidden", **({"compute": "exact"} | changes)), target=target)


STEPS = [("layer norm", "cpu"), ("bf16", "metal"), ("layer norm", "metal"), ("deterministic", "metal")]


@pytest.mark.parametrize(("case", "target"), few(STEPS, STEPS[:2]))
def test_every_kind_of_step_agrees_with_the_reference(case: str, target: str) -> None:
    pair = HostPair(artifact(target, **CASES[case]))
    rng = np.random.default_rng(1)
    a, b, c = pair.add(), pair.add(), pair.add()

    def tokens(count: int) -> list[int]:
        return rng.integers(0, 61, count).tolist()

    assert pair.step([(a, tokens(9))], "all").shape == (9, 48)
    assert pair.step([(a, tokens(3)), (b, tokens(11))], {a: "last", b: "all"}).shape == (12, 48)
    assert pair.step([(a, tokens(1)), (b, tokens(1))]).shape == (2, 48)  # decode
    assert pair.step([(a, tokens(1)), (b, tokens(4)), (c, tokens(2))], {a: "none", b: "none", c: "last"}).shape[0] == 1
    assert pair.step([(a, tokens(4))], "none").shape == (0, 48)


@pytest.mark.parametrize("target", TARGETS)
def test_the_output_projection_of_hidden_rows_gives_the_logits(target: str) -> None:
    """An artifact that gives hidden rows has no output projection; the ordinary one's, in NumPy, gives its logits."""
    hidden, ordinary = artifact(target), compiled(small_spec(compute="exact"), target=target)
    assert hidden.plan.output_width == 48 and ordinary.plan.output_width == 61
    names = {weight.name for weight in hidden.plan.weights}
    assert names == {weight.name for weight in ordinary.plan.weights} - {"output"}
    pair = HostPair(hidden)
    weights = dict(pair.weights) | {"output": mx.array(np.random.default_rng(3).standard_normal((61, 48)), mx.float32)}
    tokens = np.random.default_rng(2).integers(0, 61, 13).tolist()
    rows = pair.step([(pair.add(), tokens)], "all")
    pager, arena = Pager.from_geometry(ordinary.plan.arena), nan_arena(Arena(ordinary.plan.arena))
    batch = Batch.build([BatchRequest(pager.add_sequence(), tokens, 0, "all")], pager, ordinary.plan.query_tile)
    logits = logits_of(ReferenceHost(ordinary, weights, arena), batch)
    check_logits("hidden @ output.T", rows @ floats(weights["output"]).T, logits, "f32")
