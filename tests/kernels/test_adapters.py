"""Adapters: each token's own, in one batch, on every target; what they add is what the reference adds."""

from typing import Any

import numpy as np
import pytest

from mlxr.compiler.artifact import DOWN, adapted_matrices
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr_tests.adapters import AdaptedPair, Matrices, random_adapter
from mlxr_tests.few import few
from mlxr_tests.specs import compiled, small_spec

ADAPTERS = {"adapters": {"rank": 8, "slots": 3}}
PAGED = {"dtype": "f32", "block_size": 4, "max_sequences": 4, "mode": "paged"}
SPECS: dict[str, dict[str, Any]] = {
    "f32": {"cache": PAGED},
    "quantised": {
        "cache": PAGED,
        "model__tensor_names": "canonical",
        "model__hidden_size": 96,
        "model__attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "qkv_bias": True},
        "model__mlp": {"intermediate_size": 160},
        "weights": {"default": "q8_0"},
    },
    "bytes": {
        "cache": PAGED,
        "model__tensor_names": "canonical",
        "model__hidden_size": 96,
        "model__attention": {"num_heads": 4, "num_kv_heads": 1, "head_dim": 40, "qkv_bias": True},
        "model__mlp": {"intermediate_size": 160},
        "weights": {"default": "q4_1"},
        "adapters": {"rank": 32, "slots": 3},
        "compute": "fast",
    },
    "sandwich": {
        "cache": PAGED,
        "model__tensor_names": "canonical",
        "model__norm": {"placement": "sandwich"},
        "model__attention": {"num_heads": 6, "num_kv_heads": 2, "head_dim": 40, "qk_norm": {"scope": "head"}},
        "model__mlp": {"intermediate_size": 88, "activation": "gelu_tanh"},
    },
    "post": {"cache": PAGED, "model__tensor_names": "canonical", "model__norm": {"placement": "post"}},
    "parallel": {
        "cache": PAGED,
        "model__parallel_blocks": True,
        "model__mlp": {"intermediate_size": 88, "gated": False, "activation": "gelu", "bias": True},
    },
    "bf16": {"cache": PAGED, "activation_dtype": "bf16", "weights": {"default": "bf16"}},
    "deterministic": {"cache": PAGED, "deterministic": True},
}
SHORT = few([(target, name) for target in ("metal", "cpu") for name in SPECS], [("metal", "f32"), ("cpu", "bytes")])
pytestmark = pytest.mark.usefixtures("kernel_host")


def pair_of(target: str, name: str, threads: int = 2) -> AdaptedPair:
    options = {"threads": threads} if target == "cpu" else {}
    pair = AdaptedPair(compiled(small_spec(**ADAPTERS | SPECS[name]), target=target), **options)
    for slot in range(3):
        adapter = random_adapter(pair.artifact.spec, slot)
        pair.put(slot, uneven(adapter) if name == "bytes" else adapter)
    return pair


def uneven(adapter: Matrices) -> Matrices:
    """An adapter whose ranks are small in one matrix and large in the other; a few numbers are nearly zeros.

    It adds a fourth as much, less than weights do, as trained ones do: rounding to 8 bits counts as theirs does.
    """
    found = {}
    for part, numbers in adapter.items():
        powers = np.exp2(np.arange(len(numbers)) % 11 - 5).astype(np.float32)[:, None]
        found[part] = numbers * (powers if part.endswith(DOWN) else 1 / powers) * np.float32(0.25)
        found[part][5, :32] *= np.float32(1e-39)
    return found


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(("target", "name"), SHORT)
def test_tokens_have_the_adapters_of_their_sequences(target: str, name: str) -> None:
    pair = pair_of(target, name, threads=1)  # which has tokens of both of the groups in the last step
    seqs = [pair.add_using(*use) for use in ((2, 1.0), (-1, 0.0), (0, 0.5), (2, -1.0))]
    pair.step([(seq, [1 + seq, 2, 3, 4, 5][: 5 - i]) for i, seq in enumerate(seqs)])
    for token in (7, 9):
        pair.step([(seq, [token + seq]) for seq in seqs])
    pair.step([(seqs[2], [1]), (seqs[0], [2, 3, 4])])
    pair.step([(seqs[1], [*range(20)]), (seqs[3], [*range(11)])])  # more than the 16 that the C program takes together
    assert pair.artifact.plan.max_tokens >= 31
    labels = {kernel.label for kernel in pair.plan.program(target).kernels if kernel.name in pair.host.launches}
    merged = {"qkv", "o", "gate_up" if pair.artifact.spec.model.mlp.gated else "up", "down"}
    lows = (
        {f"{word}_low" for word in merged} if target == "metal" else set()
    )  # C multiplies by both matrices in one call
    assert {label for label in labels if label.endswith("_low")} == lows
    assert {label for label in labels if label.endswith("_adapted")} == {f"{word}_adapted" for word in merged}


@pytest.mark.parametrize("target", few(["metal", "cpu"], ["cpu"]))
def test_a_slot_that_is_emptied_adds_nothing(target: str) -> None:
    pair = pair_of(target, "f32")
    prompt = [1, 2, 3]
    plain = pair.step([(pair.add_using(-1), prompt)])
    adapted = pair.step([(pair.add_using(1), prompt)])
    assert np.abs(plain - adapted).max() > 0.1
    alone = pair.add_using(1)
    for token in range(8):  # which two threads share
        pair.step([(alone, [token])])
    pair.free(alone)
    pair.put(1, {})
    np.testing.assert_array_equal(pair.step([(pair.add_using(1), prompt)]), plain)
    pair.put(1, random_adapter(pair.artifact.spec, 5, only=["mlp.down"]))
    assert np.abs(plain - pair.step([(pair.add_using(1), prompt)])).max() > 0.01


@pytest.mark.long
@pytest.mark.parametrize(("target", "name"), [("cpu", "deterministic"), ("metal", "deterministic")])
def test_company_changes_no_bit(target: str, name: str) -> None:
    pair = pair_of(target, name)
    first, other, alone = pair.add_using(1), pair.add_using(2), pair.add_using(1)
    together = pair.step([(first, [1, 2, 3]), (other, [4, 5])])[0]
    np.testing.assert_array_equal(pair.step([(alone, [1, 2, 3])])[0], together)


def test_a_batch_that_says_nothing_uses_no_adapter() -> None:
    pair = pair_of("cpu", "f32")
    plain = pair.step([(pair.add_using(-1), [1, 2, 3])])
    batch = Batch.build([BatchRequest(pair.add(), [1, 2, 3], 0)], pair.pager, pair.plan.query_tile)
    np.testing.assert_array_equal(pair.host.read(pair.host.step(batch)), plain)


def test_packed_weights_are_those_of_the_model_without_adapters() -> None:
    specs = [small_spec(**SPECS["bytes"] | {"adapters": places}) for places in ({"rank": 32, "slots": 3}, None)]
    libraries = [compiled(spec, target="cpu").plan.program("cpu").library for spec in specs]
    packed = [[tensor for tensor in library.tensors if tensor.layout == "packed"] for library in libraries if library]
    assert packed[0] == packed[1] and packed[0]
    assert len({library.packing for library in libraries if library}) == 1


def test_other_weights_have_no_adapters() -> None:
    """Those of experts, of latent attention and of the vocabulary."""
    of_experts = {"count": 4, "per_token": 2, "router": "softmax_topk"}
    experts = small_spec(model__mlp={"intermediate_size": 88, "experts": of_experts})
    assert {name.split(".", 2)[2] for name in adapted_matrices(experts.model)} == {f"attention.{x}" for x in "qkvo"}
