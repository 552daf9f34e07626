"""Every property of model families on sim: whole models against the reference, and each of their kernels launched."""

import itertools

import mlx.core as mx
import pytest

from mlxr.compiler.errors import KernelFault
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.family_runs import SPLIT, check_q8_cache, check_types, generate
from mlxr_tests.family_specs import ALL_SPECS, family_spec
from mlxr_tests.few import few
from mlxr_tests.host_pair import HostPair
from mlxr_tests.rounding_pair import RoundingPair
from mlxr_tests.specs import compiled, random_weights
from mlxr_tests.tolerances import Mismatch

pytestmark = pytest.mark.usefixtures("kernel_host")


@pytest.mark.parametrize(
    "name",
    few(ALL_SPECS, ["cohere-like", "short-conv"]),  # kernels' own tests have every line of the others
)
def test_family(name):
    pair = HostPair(compiled(family_spec(name), SPLIT))
    generate(pair)
    if pair.plan.arena.num_slots:  # slots of states are copied by tiers alone
        states = pair.host.read_blocks([0, 1], None)
        pair.host.write_blocks([3, 2], states, None)
        assert (pair.host.read_blocks([3, 2], None) == states).all()
    idle = {k.name for k in pair.plan.first.kernels} - set(pair.host.launches)
    assert not idle, f"never launched: {idle}"


WITH_Q8 = itertools.product(
    [
        "soft-caps",
        "sinks",
        "some-layers-without-rope",
        "windows-and-ropes",
        "gemma-like",
        "heads-by-layer",
        "shared-keys",
        "short-values",
    ],
    ["block", "layer"],
)


SHORT_WITH_Q8 = [("sinks", "block")]


@pytest.mark.parametrize(("name", "layout"), few(WITH_Q8, SHORT_WITH_Q8))
def test_q8_cache(name, layout):
    check_q8_cache(name, layout)


IN_16_BITS = itertools.product(
    ["qk-norm-all", "post-norm-layer-bias", "temperature", "olmo-like", "heads-by-layer", "shared-keys"],
    ["bf16", "f16"],
)


@pytest.mark.long
@pytest.mark.parametrize(("name", "dtype"), few(IN_16_BITS, [("olmo-like", "bf16")]))
def test_types(name, dtype):
    check_types(name, dtype)


@pytest.mark.long
@pytest.mark.parametrize("partition", few([512, 8], [512]))
def test_matrix_instructions_read_the_keys_of_an_earlier_layer(partition):
    """Whole contexts, and partitions of them."""
    changes = {"activation_dtype": "bf16", "cache__dtype": "bf16", "weights": {"default": "bf16"}}
    mma = Geometry.of(attend_mma=1, partition_mma=1, partition=partition, prefill_mma=1)
    pair = RoundingPair(
        compiled(family_spec("shared-keys", **changes), mma),
        compiled(family_spec("shared-keys", weights={"default": "bf16"}), SPLIT),
    )
    generate(pair)
    pair.check()
    ran = {pair.plan.first.kernel(name).label for name in pair.host.launches}
    assert "attend_mma" in ran if partition > 40 else "attend_partition_mma" in ran


def test_sinks_of_every_size():
    """One that nothing can outweigh, and ones that never count: their heads' results are nothing, or as without."""
    artifact = compiled(family_spec("sinks"), SPLIT)
    weights = random_weights(artifact.plan)
    sinks = mx.array([-mx.inf, -1e4, 0.0, 1e4, -80.0, 80.0])
    generate(HostPair(artifact, weights | {name: sinks for name in weights if name.endswith("sinks")}))


@pytest.mark.long
@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("gemma-like", ("rope_cache_write", "largest / 127.0f", "largest / 126.5f")),
        ("gemma-like", ("attend", "largest / 127.0f", "largest / 126.0f")),
        ("gemma-like", ("attend", "metal::rint(", "metal::trunc(")),
        ("gemma-like", ("rope_cache_write", "metal::rint(", "metal::floor(0.49f + ")),
        ("gemma-like", ("attend", "(p * v_scale[u])", "(p * v_scale[u] * 1.0005f)")),
        ("sinks", ("attend", "position + 1 - 6u", "position - 6u")),
        ("windows-and-ropes", ("attend", "position + 1 - 5u", "position + 2 - 5u")),
        ("windows-and-ropes", ("attend_prefill", "key_position + 5u > query", "key_position + 5u >= query")),
        ("some-layers-without-rope", ("attend", "(float)new_v * v_scale", "(float)value[element]")),
        ("some-layers-without-rope", ("down_rows", "residual[place]", "residual[place] * 1.001f")),
    ],
)
def test_mistake_beside_a_q8_cache_is_noticed(name, mistake):
    with pytest.raises((Mismatch, KernelFault)):
        check_q8_cache(name, mistake=mistake)


@pytest.mark.long
@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("post-norm-layer-bias", ("norm", "+ 9.99999975e-06f", "+ 0.02f")),
        ("post-norm-layer-bias", ("norm", "v[i] * factor", "v[i] * factor * 1.01f")),
        ("olmo-like", ("attend_prefill", "key_position <= query_position", "true")),
        ("olmo-like", ("attend", "const uint end = position;", "const uint end = max(position, 1u) - 1;")),
        ("temperature", ("attend", "position / 4u", "position / 5u")),
        ("qk-norm-all", ("qk_norm", "+ 9.99999975e-06f", "+ 0.05f")),
    ],
)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_mistake_in_16_bits_is_noticed(name, dtype, mistake):
    with pytest.raises((Mismatch, KernelFault)):
        check_types(name, dtype, mistake)
