"""Gated delta layers: whole steps of both targets against the reference, several sequences, forks and undone tokens."""

import itertools

import pytest

from mlxr_tests.delta_cases import delta_spec
from mlxr_tests.few import few
from mlxr_tests.host_pair import HostPair
from mlxr_tests.specs import compiled

pytestmark = pytest.mark.usefixtures("kernel_host")

SPECS = {
    "several values to a key": {},
    "tiled": {"tiled": True, "taps": 4},
    "misaligned numbers": {"num_heads": 3, "num_key_heads": 1, "key_dim": 20, "value_dim": 12},
    "large": {"num_heads": 2, "num_key_heads": 1, "key_dim": 128, "value_dim": 136},
    "products": {
        **{"num_heads": 8, "num_key_heads": 8, "key_dim": 40, "value_dim": 24},
        **{"channel_decays": True, "rank": 24, "gate": "sigmoid"},
    },
    "large products": {
        **{"num_heads": 2, "num_key_heads": 2, "key_dim": 128, "value_dim": 128},
        **{"channel_decays": True, "rank": 128, "gate": "sigmoid"},
    },
    "decays by channels": {"num_heads": 3, "num_key_heads": 1, "channel_decays": True, "gate": "sigmoid"},
    "wide values": {"num_heads": 4, "num_key_heads": 2, "key_dim": 8, "value_dim": 132, "tiled": True},
}


def drive(pair: HostPair) -> None:
    first = pair.add()
    pair.step([(first, [5, 60, 7, 8, 9])])
    second, third = pair.fork(first), pair.add()
    pair.step([(first, [33]), (second, [34])])
    pair.step([(first, [35]), (second, [36, 37]), (third, list(range(28)))])
    pair.undo(first, [40, 41, 42], 2)
    pair.step([(third, [1]), (first, [43]), (second, [44])])
    pair.step([(first, [50]), (third, [2])])


SHORT = [
    *(("several values to a key", "cpu"), ("misaligned numbers", "cpu")),
    *(("misaligned numbers", "metal"),),  # the first ones in test_types, too
    *(("products", "cpu"), ("wide values", "cpu")),
]


@pytest.mark.parametrize(("name", "target"), few(itertools.product(SPECS, ["metal", "cpu"]), SHORT))
def test_steps(name: str, target: str) -> None:
    exact = {"cache__max_sequences": 4, "model__context": 64, "model__num_layers": 4, "compute": "exact"}
    drive(HostPair(compiled(delta_spec(**SPECS[name], of_model=exact), target=target)))


@pytest.mark.long  # test_delta_chunks.py has a short one, of bf16
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_types(dtype: str) -> None:
    changes = {
        "cache__max_sequences": 4,
        "model__context": 64,
        "activation_dtype": dtype,
        "weights": {"default": dtype},
    }
    drive(HostPair(compiled(delta_spec(of_model=changes))))
