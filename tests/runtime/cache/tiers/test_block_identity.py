"""What tells blocks apart that have the same tokens."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.block_hashes import state_tokens
from mlxr.runtime.cache.tiers.block_identity import BlockIdentity
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr_tests.family_specs import family_spec
from mlxr_tests.kv_blocks import IDENTITY, chain, digests, make_tiers, other
from mlxr_tests.specs import compiled, random_weights, small_spec


def identity(host: str = "cpu", weights: str = "w", **changes: Any) -> BlockIdentity:
    artifact = compiled(small_spec(**changes))
    return BlockIdentity.of(artifact, weights, host, Arena(artifact.plan.arena))


def test_each_cause_of_other_bytes_makes_another_identity() -> None:
    identities = [
        identity(),
        identity(host="sim"),
        identity(weights="v"),
        identity(cache__dtype="f16"),
        identity(cache__layout="layer"),
        identity(cache__block_size=8),
        identity(model__context=48),
    ]
    assert len({one.folder_name for one in identities}) == len(identities)
    assert identity() == identity() and identity().folder_name == identities[0].folder_name


def test_blocks_of_an_arena_come_back_through_tiers() -> None:
    artifact = compiled(small_spec())
    host = ReferenceHost(artifact, random_weights(artifact.plan), Arena(artifact.plan.arena))
    own = BlockIdentity.of(artifact, "w", host.name, host.arena)
    assert own.block_bytes == host.block_bytes == 2 * 2 * own.block_size * 2 * 160
    assert own.stores == ("k_arena 2 2x40 f32", "v_arena 2 2x40 f32")
    names, data = chain(3, identity=own)
    host.write_blocks([4, 2, 7], data)
    tiers = make_tiers(None, memory_blocks=3, identity=own)
    tiers.put(names, host.read_blocks([4, 2, 7]))
    host.write_blocks([9, 8, 3], tiers.fetch(digests(names)).result().data)
    assert np.array_equal(host.read_blocks([9, 8, 3]), data)
    tiers.close()


def test_models_with_states_have_folders_of_their_own() -> None:
    assert IDENTITY.digest.hex() == "fba8172d67f6af2f9720e4d18265ad43", "without states, as before there were any"
    artifact = compiled(family_spec("delta", cache={"dtype": "f32", "block_size": 4}))
    own = BlockIdentity.of(artifact, "w", "cpu", Arena(artifact.plan.arena))
    assert own.stores == ("k_arena 1 2x40 f32", "v_arena 1 2x40 f32", "conv_states 1 256x2 f32", "states 1 4x24x40 f32")
    assert own.state_bytes == 4 * (256 * 2 + 4 * 24 * 40)
    sizes = [own.data_bytes(tokens) for tokens in ((3, 1, 4, 1), state_tokens((), 4), state_tokens((5, 9), 4))]
    assert sizes == [own.block_bytes, own.state_bytes, own.state_bytes + own.block_bytes]
    assert len({one.digest for one in (own, replace(own, state_bytes=0), replace(own, state_bytes=8))}) == 3


@pytest.mark.parametrize("model", ["../../etc", "", "Größe/å:b", "x" * 300, "a b"])
def test_names_of_folders_are_names(model: str) -> None:
    folder = other(model=model).folder_name
    assert folder.isascii() and "/" not in folder and not folder.startswith(".") and len(folder) <= 80
