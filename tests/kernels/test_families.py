"""Every property of model families on sim: whole models against the reference, and each of their kernels launched."""

import mlx.core as mx
import pytest

from mlxr.compiler.plan.geometry import Geometry
from mlxr_tests.family_specs import ALL_SPECS, family_spec
from mlxr_tests.host_pair import HostPair
from mlxr_tests.specs import compiled, random_weights

pytestmark = pytest.mark.usefixtures("kernel_host")

SPLIT = Geometry(partition=16)


def generate(pair):
    """Prompts in one chunk and in several, decode of one and of several sequences past windows, a fork."""
    a = pair.add()
    pair.step([(a, [3, 1, 4, 1, 5, 9, 2, 6, 5])])
    pair.step([(a, [3])])
    b = pair.fork(a)
    pair.step([(b, [5]), (a, [8])])
    c = pair.add()
    pair.step([(a, [9, 7, 9, 3, 2, 3, 8]), (c, [1, 2, 3, 4, 5]), (b, [6])])
    pair.step([(a, [4]), (c, [33]), (b, [60])])
    pair.step([(a, [4])])


@pytest.mark.parametrize("name", ALL_SPECS)
def test_family(name):
    pair = HostPair(compiled(family_spec(name), SPLIT))
    generate(pair)
    idle = {k.name for k in pair.plan.kernels} - set(pair.host.launches)
    assert not idle, f"never launched: {idle}"


@pytest.mark.parametrize("name", ["soft-caps", "sinks", "some-layers-without-rope", "windows-and-ropes", "gemma-like"])
@pytest.mark.parametrize("layout", ["block", "layer"])
def test_q8_cache(name, layout):
    cache = {"dtype": "q8", "block_size": 4, "max_sequences": 3, "layout": layout}
    generate(HostPair(compiled(family_spec(name, cache=cache), SPLIT)))


@pytest.mark.parametrize("name", ["qk-norm-all", "post-norm-layer-bias", "temperature", "olmo-like"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_types(name, dtype):
    changes = {"activation_dtype": dtype, "weights": {"default": dtype}}
    generate(HostPair(compiled(family_spec(name, **changes), SPLIT)))


def test_sinks_of_every_size():
    """One that nothing can outweigh, and ones that never count: their heads' results are nothing, or as without."""
    artifact = compiled(family_spec("sinks"), SPLIT)
    weights = random_weights(artifact.plan)
    sinks = mx.array([-mx.inf, -1e4, 0.0, 1e4, -80.0, 80.0])
    generate(HostPair(artifact, weights | {name: sinks for name in weights if name.endswith("sinks")}))
