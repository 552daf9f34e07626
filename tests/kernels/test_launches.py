"""One generate call launches every kernel of its artifact, as often as the plan says, in the plan's order."""

from collections import Counter

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.schedule.geometry import Geometry
from mlxr.loading.load import load
from mlxr.runtime.engine.model import Model
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.hosts.sim.host import SimHost
from mlxr_tests.specs import compiled, random_weights, small_spec

LAYERS = 2


@pytest.fixture(scope="module")
def weights_file(tmp_path_factory):
    """A safetensors file of random weights, under the names that files use."""
    plan = compiled(small_spec()).plan
    tensors = {}
    for weight in plan.weights:
        array, row = random_weights(plan)[weight.name], 0
        for part in weight.parts:
            tensors[part.safetensors[0].tensor] = mx.array(np.array(array[row : row + part.shape[0]]))
            row += part.shape[0]
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    mx.save_safetensors(str(path), tensors, metadata={"format": "mlx"})
    return path


@pytest.fixture
def model(weights_file) -> Model:
    artifact = compiled(small_spec(prefill_chunk=8), Geometry.of(partition=16))
    return load(artifact, weights_file, host="sim")


def by_label(model):
    return Counter({model.artifact.plan.first.kernel(name).label: n for name, n in model.host.launches.items()})


def test_every_kernel_is_launched_as_often_as_planned(model):
    generation = model.start([list(range(11))], max_tokens=12, sampling=Sampling(n=2))
    answers = generation.finish()
    assert [len(a.token_ids) for a in answers] == [12, 12]
    assert set(model.host.launches) == {k.name for k in model.artifact.plan.first.kernels}

    # The prompt: chunks of 8 and 3. The second sample then reads the prompt's last token, beside the first one's next:
    # 11 steps of both samples, at contexts of 12 to 22, and one of the second sample alone, at 22.
    prefills, alone, both, long = 2, 1, 11, 7
    per_layer = {
        "qkv": alone,
        "qkv_rows": prefills + both,
        "rope_cache_write": prefills,
        "attend_prefill": prefills,
        "attend": alone + both - long,
        "attend_partition": long,
        "attend_reduce": long,
        "o": alone,
        "o_rows": prefills + both,
        "gate_up": alone,
        "gate_up_rows": prefills + both,
        "down": alone,
        "down_rows": prefills + both,
    }
    expected = Counter({label: LAYERS * count for label, count in per_layer.items()})
    expected |= {"embed": prefills + alone + both, "logits": 1 + alone, "logits_rows": both, "copy_blocks": 1}
    assert by_label(model) == expected


def test_arena_token_counts_every_access(model):
    """Each access adds one to the token that it was given, so the sum proves one unbroken chain."""
    model.start([list(range(11))], max_tokens=12, sampling=Sampling(n=2)).finish()
    launches = by_label(model)
    accesses = sum(
        launches[label] for label in ("rope_cache_write", "attend_prefill", "attend", "attend_partition", "copy_blocks")
    )
    assert np.array(model.arena.token).tolist() == [accesses] * 8
    assert accesses == LAYERS * (2 * 2 + 12) + 1


def test_samples_equal_a_generation_alone(model):
    """Greedy samples of forked sequences agree with each other and with one sequence on the reference."""
    prompt = list(range(9))
    first, second = model.start([prompt], max_tokens=12, sampling=Sampling(n=2)).finish()
    assert first.token_ids == second.token_ids
    assert model.generate(prompt, max_tokens=12).token_ids == first.token_ids


def test_reference_generates_the_same(model, weights_file):
    prompts = [list(range(9)), [3], list(range(30, 50))]
    other = load(model.artifact, weights_file, host="reference")
    ours, theirs = (m.start(prompts, max_tokens=10).finish() for m in (model, other))
    assert [a.token_ids for a in ours] == [a.token_ids for a in theirs]
    assert len({tuple(a.token_ids) for a in ours}) == 3, "answers that are all the same prove little"


def test_more_sequences_than_tokens_of_a_step(weights_file):
    """Sequences take turns when a step cannot hold them all."""
    artifact = compiled(small_spec(prefill_chunk=2, cache__max_sequences=5), Geometry.of(partition=16))
    prompts = [[7, 8, 9], [1], [4, 4, 4, 4], [60, 2], [5]]
    ours, theirs = (
        load(artifact, weights_file, host=host).start(prompts, max_tokens=4).finish() for host in ("sim", "reference")
    )
    alone = [load(artifact, weights_file, host="sim").generate(p, max_tokens=4).token_ids for p in prompts]
    assert [a.token_ids for a in ours] == [a.token_ids for a in theirs] == alone


def test_smallest_context(weights_file):
    """One token of prompt, one generated; every table and list is shorter than what kernels are given."""
    artifact = compiled(small_spec(model__context=2, cache__max_sequences=1, cache__mode="paged", prefill_chunk=1))
    ours, theirs = (load(artifact, weights_file, host=host) for host in ("sim", "reference"))
    assert ours.generate([5], max_tokens=9).token_ids == theirs.generate([5], max_tokens=9).token_ids
    assert len(ours.logits([5, 6])) == 2
    np.testing.assert_allclose(ours.logits([5, 6]), theirs.logits([5, 6]), atol=1e-4)


def test_launches_run_in_the_order_of_the_plan(model, monkeypatch):
    order = []
    launch = SimHost._launch

    def record(self, one, buffers, grid):
        order.append((one.op, one.kernel))
        launch(self, one, buffers, grid)

    monkeypatch.setattr(SimHost, "_launch", record)
    model.start([list(range(5))], max_tokens=1).finish()
    step = model.artifact.plan.first.phase("prefill")
    one_row = [one for one in step.launches if one.when is None or one.when.holds({"rows": 1})]
    assert order == [(one.op, one.kernel) for one in one_row] and len(step.launches) == len(one_row) + 1


def test_fused_decode_layer_is_five_launches():
    plan = compiled(small_spec()).plan
    dims = {"tokens": 1, "seqs": 1, "rows": 1, "tiles": 1, "context": 5, "copies": 0}
    for layer in range(LAYERS):
        names = [
            one.op
            for one in plan.first.phase("decode").launches
            if one.op.startswith(f"layers.{layer}.") and (one.when is None or one.when.holds(dims))
        ]
        assert len(names) == 5, names
