"""The metal host's own code, run on any machine.

MLX's `metal_kernel` is replaced by one that executes the same text on the sim. Everything else is what a Mac runs:
binding, shapes, the token chain, MLX ops for large matmuls.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np
import pytest

import mlxr
from mlxr.compiler.artifact import ATTENDED, Artifact, KernelCall
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import HostError, KernelFault
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.engine.pool import POOLINGS
from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.host import ArrayHost
from mlxr.runtime.hosts.metal.host import MetalHost
from mlxr.runtime.hosts.sim.kernel import SimBuffer
from mlxr.runtime.hosts.sim.signature import parse_signature
from mlxr_tests import matrix_bench
from mlxr_tests.family_specs import family_spec
from mlxr_tests.few import few
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.gpu_kernel import MetalKernel
from mlxr_tests.host_pair import HostPair
from mlxr_tests.kernel_host import kernel_host, sim_kernel
from mlxr_tests.matrix_bench import MatrixBench
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.storyteller import Q8_0, TINY, tiny_spec
from mlxr_tests.tolerances import Mismatch, check_logits


class SimMetalKernel:
    """Stands in for `mx.fast.metal_kernel`: same arguments, same results, executed by the sim at once."""

    texts: ClassVar[dict[str, str]] = {}
    calls: ClassVar[list[str]] = []
    tokens: ClassVar[list[tuple[mx.array, mx.array]]] = []
    """Of each launch that binds the arena, the arena token which it binds, and the one which it makes."""

    def __init__(
        self,
        *,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        header: str,
        source: str,
        ensure_row_contiguous: bool,
    ) -> None:
        assert not ensure_row_contiguous, "a contiguity copy of the arena would swallow its writes"
        text = self.texts[name]
        assert header in text and source in text, "MLX must get what the artifact shows"
        self.name, self.text = name, text
        self.names = [*input_names, *output_names]
        assert [p.name for p in parse_signature(text).params] == self.names
        self.num_inputs = len(input_names)

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[Any],
        init_value: float | None = None,
    ) -> list[mx.array]:
        assert all(x.size >= 8 for x in inputs), "MLX would bind a smaller input in the constant address space"
        outputs = [mx.full(shape, 7, dtype=dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]
        names = self.names
        if "k_arena" in names:
            places = [i for i, name in enumerate(names) if "token" in name and name != "token_ids"]
            bound, made = ([*inputs, *outputs][i] for i in places)
            self.tokens.append((bound, made))
        # A kernel of MLX sees the memory of a view; a repeated one's begins as its contiguous copy does.
        mx.eval(*inputs)
        views = [memoryview(x) for x in inputs]
        assert all(v.c_contiguous or 0 in (v.strides or ()) for v in views), "kernels take what they bind as it lies"
        inputs = [x if name in ATTENDED else mx.contiguous(x) for name, x in zip(names, inputs, strict=False)]
        mx.eval(*inputs, *outputs)
        buffers = [
            SimBuffer.of(array, writable=i >= self.num_inputs or names[i] in ATTENDED, name=names[i])
            for i, array in enumerate([*inputs, *outputs])
        ]
        groups = tuple(-(-g // t) for g, t in zip(grid, threadgroup, strict=True))
        assert all(g % t == 0 for g, t in zip(grid, threadgroup, strict=True)), "no partial threadgroups"
        sim_kernel(self.text).launch(buffers, (groups[0], groups[1], groups[2]), threadgroup)
        self.calls.append(self.name)
        return outputs


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Artifact], mlxr.Model]]:
    """Loads the tiny model's weights for an artifact on the metal host."""
    monkeypatch.setattr(mx.fast, "metal_kernel", SimMetalKernel)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", dict)
    SimMetalKernel.calls.clear()
    SimMetalKernel.tokens.clear()

    def load(artifact: Artifact) -> mlxr.Model:
        SimMetalKernel.texts = {k.name: artifact.kernel_text(k.name) for k in artifact.plan.first.kernels}
        return mlxr.load(artifact, TINY, host="auto")

    yield load


@pytest.mark.skipif(mx.metal.is_available(), reason="here the real one runs")
def test_the_metal_host_gives_the_sim_hosts_tokens(metal: Callable[[Artifact], mlxr.Model]) -> None:
    artifact = compile_spec(tiny_spec(cache={"max_sequences": 4})).artifact
    on_metal = metal(artifact)
    assert isinstance(on_metal.host, MetalHost)
    assert SimMetalKernel.calls and not on_metal.host.launches, "what is launched at load counts for nothing"
    SimMetalKernel.calls.clear()
    on_metal.arena.token = mx.zeros((8,), dtype=mx.uint32)
    on_sim = mlxr.load(artifact, TINY, host="sim")
    prompts = [[1, 403, 27], [1, *range(300, 309)]]
    got = on_metal.start(prompts, max_tokens=3, sampling=mlxr.Sampling(temperature=0.5, seed=3, n=2))
    expected = on_sim.start(prompts, max_tokens=3, sampling=mlxr.Sampling(temperature=0.5, seed=3, n=2))
    assert [a.token_ids for a in got.finish()] == [a.token_ids for a in expected.finish()]
    assert set(on_metal.host.launches) == set(on_sim.host.launches)
    assert sum(on_metal.host.launches.values()) == len(SimMetalKernel.calls)
    # A pipeline lets requests join a step later, so only the steps of one request are the same.
    for model in (on_metal, on_sim):
        model.host.launches.clear()
        model.arena.token = mx.zeros((8,), dtype=mx.uint32)
        model.generate([7, 8, 9], max_tokens=3)
    assert on_metal.host.launches == on_sim.host.launches
    assert np.array_equal(np.array(on_metal.arena.token), np.array(on_sim.arena.token))


@pytest.mark.skipif(mx.metal.is_available(), reason="here the real one runs")
@pytest.mark.parametrize("temperature", few([0.0, 0.9], [0.9]))
def test_steps_are_launched_ahead_and_the_arena_is_accessed_in_order(
    metal: Callable[[Artifact], mlxr.Model], monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """Forks, an end that costs a step, and the blocks of that step given to others: every access of the arena binds
    the token that the one before made, so no write can overtake another."""
    spec = tiny_spec(model={"context": 64}, cache={"num_blocks": 9, "max_sequences": 3}, prefill_chunk=16)
    artifact = compile_spec(spec).artifact
    on_metal, on_sim = metal(artifact), mlxr.load(artifact, TINY, host="sim")
    assert on_metal.host.pipelines and not on_sim.host.pipelines
    sampling = mlxr.Sampling(temperature=temperature, top_p=0.9, seed=3)
    steps: dict[mlxr.Model, list[bool]] = {on_metal: [], on_sim: []}

    def log(model: mlxr.Model) -> None:
        step = model.host.step

        def logged(batch: Batch) -> Any:
            steps[model].append(isinstance(batch.tokens, mx.array))
            return step(batch)

        monkeypatch.setattr(model.host, "step", logged)

    def answers(model: mlxr.Model) -> list[list[int]]:
        found: list[mlxr.Completion] = []
        for prompt, n in (([1, 300, 301], 3), ([1, 600], 1), ([1, *range(400, 430)], 1)):
            found += model.start([prompt], max_tokens=7, sampling=replace(sampling, n=n)).finish()
            model.pager.check_integrity()
            assert model.pager.num_free_blocks == 9
        return [answer.token_ids for answer in found]

    whole = answers(on_sim)
    for model in (on_metal, on_sim):
        assert model.tokenizer is not None
        monkeypatch.setattr(model.tokenizer, "eos_ids", frozenset({whole[0][3], whole[3][1]}))
        log(model)
    assert answers(on_metal) == answers(on_sim)
    assert any(steps[on_metal]) and not any(steps[on_sim])
    assert len(steps[on_sim]) < len(steps[on_metal]) <= len(steps[on_sim]) + 3, "at most one for each generation"
    chain = SimMetalKernel.tokens
    assert all(after[0] is before[1] for before, after in pairwise(chain))
    assert chain[-1][1] is on_metal.arena.token


@pytest.mark.long
@pytest.mark.skipif(mx.metal.is_available(), reason="here the real one runs")
@pytest.mark.parametrize("method", few(["start", "read"], ["read"]))
def test_a_failure_of_mlx_is_the_hosts_and_later_steps_run(
    metal: Callable[[Artifact], mlxr.Model], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    model = metal(compile_spec(tiny_spec()).artifact)
    expected = model.generate([1, 300], max_tokens=3).token_ids
    work, calls = getattr(ArrayHost, method), count(1)

    def fail(host: ArrayHost, *results: Any) -> Any:
        if next(calls) == 2:
            raise RuntimeError("the command buffer was lost")
        return work(host, *results)

    with monkeypatch.context() as patch:
        patch.setattr(ArrayHost, method, fail)
        with pytest.raises(HostError, match="the step failed on the GPU: the command buffer was lost"):
            model.generate([1, 300], max_tokens=3)
    model.pager.check_integrity()
    assert model.pager.num_sequences == 0
    assert model.generate([1, 300], max_tokens=3).token_ids == expected


@pytest.mark.long
@pytest.mark.skipif(mx.metal.is_available(), reason="here the real one runs")
def test_large_projections_run_as_mlx_ops(metal: Callable[[Artifact], mlxr.Model]) -> None:
    model = metal(compile_spec(tiny_spec()).artifact)
    ids = [1, *range(300, 339)]
    got = model.start([ids], max_tokens=2, ignore_eos=True).finish()[0]
    layers = model.artifact.plan.num_layers
    assert model.host.launches["mlx.projection"] == 4 * layers
    expected = mlxr.load(model.artifact, TINY, host="reference")
    assert got.token_ids == expected.start([ids], max_tokens=2, ignore_eos=True).finish()[0].token_ids


@pytest.mark.skipif(mx.metal.is_available(), reason="here the real one runs")
@pytest.mark.parametrize(
    ("name", "mlx_min_rows"),
    few(
        itertools.product(["experts-topk-softmax-bias", "experts-shared-gate", "sinks"], [1, 32]),
        [("sinks", 1)],
    ),
)
def test_arrays_of_few_elements(monkeypatch: pytest.MonkeyPatch, name: str, mlx_min_rows: int) -> None:
    """Sinks of 6 heads, logits of 5 experts, 2 chosen ones of one token, a gate: MLX would bind them as constants."""
    pair = metal_pair(monkeypatch, compiled(family_spec(name), Geometry.of(partition=16, mlx_min_rows=mlx_min_rows)))
    a, b = pair.add(), pair.add()
    pair.step([(a, [3, 1, 4, 1, 5, 9, 2, 6, 5])])
    pair.step([(a, [3])])
    pair.step([(a, [7]), (b, list(range(20)))])
    pair.step([(b, [7]), (a, [5])])
    assert any(launch.startswith("mlx.") for launch in pair.host.launches) == (mlx_min_rows == 1)


_QUANTISED: dict[str, Any] = {
    "model__hidden_size": 256,
    "model__mlp__intermediate_size": 512,
    "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32, "output_bias": True},
    "model__context": 96,
    "prefill_chunk": 64,
    "weights": {
        "default": "q8_0",
        "norm": "f32",
        "output": "bf16",
        "tensors": {"layers.1.attention.v": "q6_k", "layers.1.mlp.up": "iq4_xs"},
    },
}


@pytest.mark.skipif(mx.metal.is_available(), reason="here the real one runs")
@pytest.mark.parametrize("dtype", few(["f16", "bf16"], ["bf16"]))
def test_quantised_weights_are_unpacked_for_mlx(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    spec = small_spec(**_QUANTISED, activation_dtype=dtype)
    pair = metal_pair(monkeypatch, compiled(spec, Geometry.of(mlx_quantised_min_rows=24)))
    a, b = pair.add(), pair.add()
    layers = pair.plan.num_layers
    pair.step([(a, list(range(1, 42)))])
    assert mlx_launches(pair) == {"mlx.projection": 4 * layers}
    labels = [pair.plan.first.kernel(name).label for name in pair.host.launches if not name.startswith("mlx.")]
    assert labels.count("unpack") == layers == 2, "one for each layer, whose formats differ"
    unpacks = [k.name for k in pair.plan.first.kernels if k.label == "unpack"]
    assert [pair.host.launches[name] for name in unpacks] == [1, 1]
    assert not any(label.endswith(("_rows", "_gemm")) for label in labels if not label.startswith("logits"))
    pair.host.launches.clear()
    pair.step([(a, list(range(5, 28)))])
    pair.step([(a, [7])])
    assert not mlx_launches(pair) and not any("unpack" in name for name in pair.host.launches), "23 rows, and 1"
    pair.step([(a, [9, 8, 7]), (b, list(range(21)))])
    assert mlx_launches(pair) == {"mlx.projection": 4 * layers}


_ROTATED = {
    **{name: {} for name in ("plain", "partial-interleaved-rope", "rope-yarn", "no-rope", "temperature")},
    "windows-and-ropes": {},
    "attention-scale": {"cache": {"dtype": "f16", "mode": "contiguous"}},
    "some-layers-without-rope": {"cache": {"dtype": "f16", "block_size": 8, "max_sequences": 3, "layout": "layer"}},
    "sinks": {"model__attention": {"num_heads": 6, "num_kv_heads": 2, "head_dim": 40, "sinks": True}},
}


@pytest.mark.skipif(mx.metal.is_available(), reason="here the real one runs")
@pytest.mark.parametrize("name", few(_ROTATED, ["windows-and-ropes"]))
def test_prefill_attention_by_mlx(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """First chunks and later ones of one sequence; mixed batches, short chunks and decode are kernels' work."""
    options = {"cache": {"dtype": "f16", "block_size": 4, "max_sequences": 3}, **_ROTATED[name]}
    spec = family_spec(name, activation_dtype="f16", weights={"default": "f16", "norm": "f16"}, **options)
    pair = metal_pair(monkeypatch, compiled(spec, Geometry.of(partition=16, mlx_min_rows=0, mlx_min_tokens=4)))
    layers, a = pair.plan.num_layers, pair.add()
    pair.step([(a, [3, 1, 4, 1, 5, 9, 2, 6, 5])])
    windowed = 3 if name == "windows-and-ropes" else 0  # of 5 tokens, in a context of 9
    assert mlx_launches(pair) == {"mlx.rope_attention": layers - windowed}
    pair.step([(a, [2, 7, 1, 8])], "all")
    assert mlx_launches(pair) == {"mlx.rope_attention": 2 * (layers - windowed)}
    pair.step([(a, [7, 7, 7])])
    pair.step([(a, [3])])
    if pair.plan.arena.max_sequences > 1:
        b = pair.add()
        pair.step([(b, [5, 6, 7, 8, 9]), (a, [8, 8, 8, 8])])
    assert mlx_launches(pair) == {"mlx.rope_attention": 2 * (layers - windowed)}
    if pair.plan.arena.max_sequences > 1:
        pair.step([(b, [1, 2, 3, 4, 5, 6])])
        assert mlx_launches(pair) == {"mlx.rope_attention": 3 * (layers - windowed)}


@pytest.mark.skipif(mx.metal.is_available(), reason="here the real one runs")
def test_prefill_attention_by_mlx_in_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens and context of more tiles than one, and tiles that tokens do not begin with."""
    heads = {"num_heads": 12, "num_kv_heads": 6, "head_dim": 64}
    options = {"cache": {"dtype": "bf16", "block_size": 4, "max_sequences": 1}, "model__attention": heads}
    artifact = compiled(small_spec(activation_dtype="bf16", **options), Geometry.of(mlx_min_rows=0, mlx_min_tokens=2))
    (prepare,) = (
        la
        for la in artifact.plan.first.phase("prefill").launches
        if la.needs_library and isinstance(la.body, KernelCall) and la.op.startswith("layers.0")
    )
    assert [str(extent) for extent in prepare.threadgroups] == ["ceil(context/10)", "11", "1"]
    pair = metal_pair(monkeypatch, artifact)
    a = pair.add()
    for tokens in (23, 13, 2):
        pair.step([(a, list(range(1, 1 + tokens)))], "all")
    assert mlx_launches(pair) == {"mlx.rope_attention": 3 * pair.plan.num_layers}


@pytest.mark.skipif(mx.metal.is_available(), reason="here the real one runs")
def test_a_window_that_holds_the_context_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = family_spec("windows-and-ropes", activation_dtype="bf16", cache={"dtype": "bf16", "max_sequences": 1})
    pair = metal_pair(monkeypatch, compiled(spec, Geometry.of(mlx_min_rows=0, mlx_min_tokens=2)))
    a = pair.add()
    pair.step([(a, [3, 1, 4])])
    assert mlx_launches(pair) == {"mlx.rope_attention": 4}
    pair.step([(a, [3, 1])])
    assert mlx_launches(pair) == {"mlx.rope_attention": 8}
    pair.step([(a, [3, 1])])
    assert mlx_launches(pair) == {"mlx.rope_attention": 9}


@pytest.mark.skipif(mx.metal.is_available(), reason="here the real one runs")
@pytest.mark.long
@pytest.mark.parametrize("weight", range(4))
def test_a_weight_that_is_not_unpacked_is_noticed(monkeypatch: pytest.MonkeyPatch, weight: int) -> None:
    artifact = compiled(small_spec(**_QUANTISED, activation_dtype="f16"), Geometry.of(mlx_quantised_min_rows=24))
    for entry in (kernel for kernel in artifact.plan.first.kernels if kernel.label == "unpack"):
        parts = re.split("(?=    // Rows )", artifact.kernel_text(entry.name))
        mistaken = [
            part.replace("MLXR_STORE_UINT4(", "(void)(") if f" of weight_{weight}.\n" in part else part
            for part in parts
        ]
        assert mistaken != parts, "the mistake can be planted"
        pair = metal_pair(monkeypatch, Artifact({**artifact.files, entry.file: "".join(mistaken)}))
        with pytest.raises(Mismatch):
            pair.step([(pair.add(), list(range(1, 42)))])


@pytest.mark.skipif(mx.metal.is_available(), reason="here the real one runs")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("context_lens[0]", "0"),
        ("positions[0]", "context"),
        ("is_key ? keys : values", "keys"),
        ("is_key ? k_arena : v_arena", "k_arena"),
        ("* context + position", "* 16u + position"),
        ("* temperature", ""),
    ],
)
def test_mistakes_in_what_attention_by_mlx_takes_are_noticed(
    monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    """No K and V, no queries, K or V alone, K and V of another context's length, queries without temperature."""
    options: dict[str, Any] = {"activation_dtype": "f16", "weights": {"default": "f16", "norm": "f16"}}
    spec = family_spec("temperature", **options, cache={"dtype": "f16", "block_size": 4, "max_sequences": 3})
    artifact = compiled(spec, Geometry.of(partition=16, mlx_min_rows=0, mlx_min_tokens=4))
    entry = artifact.kernel_entry("attention_inputs")
    text = artifact.kernel_text(entry.name)
    assert old in text
    pair = metal_pair(monkeypatch, Artifact({**artifact.files, entry.file: text.replace(old, new)}))
    with pytest.raises((Mismatch, KernelFault)):
        pair.step([(pair.add(), [3, 1, 4, 1, 5, 9, 2, 6, 5])])


def metal_pair(monkeypatch: pytest.MonkeyPatch, artifact: Artifact) -> HostPair:
    """A pair whose host is the metal host."""
    monkeypatch.setattr(mx.fast, "metal_kernel", SimMetalKernel)
    SimMetalKernel.texts = {k.name: artifact.kernel_text(k.name) for k in artifact.plan.first.kernels}
    pair = HostPair(artifact)
    pair.host = MetalHost(artifact, random_buffers(pair.plan)[0], pair.arena)
    return pair


def test_tests_of_kernels_run_on_an_apple_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a Mac launches for `kernel_host`: single kernels, with small inputs too, and whole steps."""

    def load(text: str, name: str, threads: int) -> MetalKernel:
        SimMetalKernel.texts = {name: text}
        return MetalKernel(text, name, threads)

    monkeypatch.setattr(mx.fast, "metal_kernel", SimMetalKernel)
    monkeypatch.setattr(mx, "gpu", mx.cpu)
    monkeypatch.setattr(matrix_bench, "load_kernel", load)
    SimMetalKernel.calls.clear()
    bench, ids = MatrixBench([("q8_0", 9)], 64, seed=1), [8, 0, 3, 3]
    assert (bench.rows(ids) == bench.numbers[ids]).all()
    assert len(SimMetalKernel.calls) == 1
    artifact = compiled(small_spec())
    SimMetalKernel.texts = {k.name: artifact.kernel_text(k.name) for k in artifact.plan.first.kernels}
    with kernel_host("metal"):
        pair = HostPair(artifact)
        assert isinstance(pair.host, MetalHost)
        pair.step([(pair.add(), [3, 1, 4])])
    assert len(SimMetalKernel.calls) > 5


def mlx_launches(pair: HostPair) -> dict[str, int]:
    return {name: count for name, count in pair.host.launches.items() if name.startswith("mlx.")}


@pytest.mark.skipif(mx.metal.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_metal_host_says_so() -> None:
    with pytest.raises(HostError, match="Apple silicon"):
        mlxr.load(mlxr.compile("storyteller"), Q8_0, host="metal")


@pytest.mark.long
def test_hidden_rows_are_those_of_the_sim(metal: Callable[[Artifact], mlxr.Model]) -> None:
    """Of prompts that several pipelined steps read, one of a single token among them."""
    cache = {"max_sequences": 3, "block_size": 16}
    spec = tiny_spec(output="hidden", model={"context": 64}, cache=cache, prefill_chunk=32)
    artifact = compile_spec(spec, targets=("metal",)).artifact
    prompts = [[1, *range(300, 300 + count)] for count in (0, 40, 9, 62)]
    with mlxr.load(artifact, TINY, host="sim") as model:
        expected = {pooling: model.embed(prompts, pooling=pooling) for pooling in POOLINGS}
    with metal(artifact) as model:
        assert model.host.name == "metal" and model.host.pipelines
        for pooling in POOLINGS:
            check_logits(pooling, model.embed(prompts, pooling=pooling), expected[pooling], "f32")
