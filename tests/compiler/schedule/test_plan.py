"""Plans: lifetimes, arena order, and the verifier that refuses what breaks them."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import mlxr
from mlxr.compiler.artifact.launch import Condition, Extent, KernelCall, Launch
from mlxr.compiler.artifact.library_call import AttentionCall, MatmulCall
from mlxr.compiler.artifact.plan import Plan
from mlxr.compiler.artifact.program import PHASES, PhaseName
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.check import check_plan
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.memory import arena_geometry, place_activations
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr_tests.family_specs import family_spec
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.variants import variant


@pytest.fixture(scope="module")
def plan() -> Plan:
    return mlxr.compile("llama-3.2-1b").plan


@pytest.mark.parametrize(
    ("sequences", "context", "chunk", "tokens"),
    [(1, 4096, 512, 1024), (1, 65536, 512, 2048), (8, 4096, 128, 512), (8, 32768, 384, 1920), (8, 512, 4096, 4096)],
)
def test_snapshots_of_a_context_fit_the_slots(sequences: int, context: int, chunk: int, tokens: int) -> None:
    cache = {"max_sequences": sequences, "dtype": "f32"}
    spec = family_spec("short-conv", cache=cache, model__context=context, prefill_chunk=chunk)
    assert arena_geometry(spec, GeometryTable()).snapshot_tokens == tokens


@pytest.mark.parametrize("phase_name", PHASES)
def test_buffers_alive_together_do_not_overlap(plan: Plan, phase_name: PhaseName) -> None:
    step = plan.first.phase(phase_name)
    buffers = {b.name: b for b in step.buffers}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, launch in enumerate(step.launches):
        for name in launch.outputs:
            first.setdefault(name, index)
            last[name] = index
        for name in launch.inputs:
            last[name] = index
    checked = 0
    for a in buffers.values():
        for b in buffers.values():
            if a.name < b.name and first[a.name] <= last[b.name] and first[b.name] <= last[a.name]:
                first_end, second_end = a.offset_bytes + a.size_bytes, b.offset_bytes + b.size_bytes
                assert first_end <= b.offset_bytes or second_end <= a.offset_bytes, f"{a.name} and {b.name} overlap"
                checked += 1
    assert checked > len(buffers)
    # Memory is reused: far less than one place for each buffer.
    assert step.activation_bytes < sum(b.size_bytes for b in buffers.values()) / 4
    assert all(b.offset_bytes % 256 == 0 for b in buffers.values())


def test_placement_reuses_the_lowest_free_place() -> None:
    def launch(inputs: str, outputs: str) -> PendingLaunch:
        return PendingLaunch("op", None, tuple(inputs), tuple(outputs), (Extent(), Extent(), Extent()))  # type: ignore[arg-type]

    drafts = [launch("", "a"), launch("a", "b"), launch("b", "c"), launch("c", "d")]
    shapes = {name: ((64,), DType.F32) for name in "abcd"}
    buffers, total = place_activations(drafts, shapes, {}, ["d"])
    assert {b.name: b.offset_bytes for b in buffers} == {"a": 0, "b": 256, "c": 0, "d": 256}
    assert total == 512


def test_a_buffer_that_is_returned_lives_to_the_end() -> None:
    def launch(inputs: str, outputs: str) -> PendingLaunch:
        return PendingLaunch("op", None, tuple(inputs), tuple(outputs), (Extent(), Extent(), Extent()))  # type: ignore[arg-type]

    drafts = [launch("", "a"), launch("", "b"), launch("b", "c")]
    shapes = {name: ((64,), DType.F32) for name in "abc"}
    kept, _ = place_activations(drafts, shapes, {}, ["a"])
    assert {b.name: b.offset_bytes for b in kept} == {"a": 0, "b": 256, "c": 512}


def test_activations_of_two_batches_are_aligned() -> None:
    """The memory of the second begins where that of the first ends."""
    drafts = [PendingLaunch("op", None, (), ("a",), (Extent(), Extent(), Extent()))]  # type: ignore[arg-type]
    _, total = place_activations(drafts, {"a": ((65,), DType.F32)}, {}, ["a"])
    assert total == 512


def test_a_fused_decode_layer_is_five_launches(plan: Plan) -> None:
    dims = {"tokens": 1, "seqs": 1, "rows": 1, "tiles": 1, "context": 100}
    run = [la for la in plan.first.phase("decode").launches if la.when is None or la.when.holds(dims)]  # type: ignore[arg-type]
    for layer in range(plan.num_layers):
        mine = [la for la in run if la.op.startswith(f"layers.{layer}.")]
        labels = [plan.first.kernel(la.kernel).label for la in mine]
        assert labels == ["qkv", "attend", "o", "gate_up", "down"]


def edited(plan: Plan, change: Callable[[list[Launch]], None]) -> Plan:
    launches = list(plan.first.phase("decode").launches)
    change(launches)
    decode = plan.first.phase("decode").model_copy(update={"launches": tuple(launches)})
    return plan.with_program("metal", phases=(decode, plan.first.phase("prefill")))


def first_of(launches: list[Launch], plan: Plan, label: str) -> int:
    return next(i for i, la in enumerate(launches) if plan.first.kernel(la.kernel).label == label)


def test_a_plan_without_token_edges_is_refused(plan: Plan) -> None:
    check_plan(plan)

    def rewire(launches: list[Launch]) -> None:
        at = [i for i, la in enumerate(launches) if plan.first.kernel(la.kernel).label == "attend"][1]
        inputs = tuple("arena_token" if name.endswith(".token") else name for name in launches[at].inputs)
        assert inputs != launches[at].inputs
        launches[at] = launches[at].model_copy(update={"inputs": inputs})

    with pytest.raises(PlanError, match=r"the arena with token 'arena_token'; .*\[target metal, phase decode\]"):
        check_plan(edited(plan, rewire))


def test_a_buffer_read_before_it_is_made_is_refused(plan: Plan) -> None:
    def swap(launches: list[Launch]) -> None:
        at = first_of(launches, plan, "qkv")
        launches.insert(0, launches.pop(at))

    with pytest.raises(PlanError, match="reads 'embedded', which nothing made"):
        check_plan(edited(plan, swap))


def test_two_launches_of_one_buffer_must_exclude_each_other(plan: Plan) -> None:
    def both(launches: list[Launch]) -> None:
        at = first_of(launches, plan, "attend")
        launches[at] = launches[at].model_copy(update={"when": None})

    with pytest.raises(PlanError, match="both make"):
        check_plan(edited(plan, both))


def test_launches_of_a_buffer_exclude_each_other_even_if_it_has_readers_of_the_same_conditions(plan: Plan) -> None:
    conditions = [Condition(dim="seqs", maximum=1), Condition(dim="seqs", minimum=1)]

    def overlapping(launches: list[Launch]) -> None:
        at = first_of(launches, plan, "qkv")
        qkv = launches[at].outputs[0]
        (reader,) = {la.op for la in launches if qkv in la.inputs}
        for makes in (lambda la: qkv in la.outputs, lambda la: la.op == reader):
            alike = [i for i, la in enumerate(launches) if makes(la)]
            pair = [launches[alike[0]].model_copy(update={"when": condition}) for condition in conditions]
            launches[alike[0] : alike[-1] + 1] = pair

    with pytest.raises(PlanError, match=r"both make 'layers.0.attention.qkv_projected'"):
        check_plan(edited(plan, overlapping))


@pytest.mark.parametrize(
    ("label", "change", "message"),
    [
        ("attend_partition", {"inputs": {-1: "arena_token"}}, "with token 'arena_token'"),
        ("attend_partition", None, "no launch makes|nothing made"),
        ("attend_reduce", None, "which nothing reads|no launch makes"),
        ("qkv_rows", None, "no launch makes 'layers.1.attention.qkv_projected' for 2 tokens"),
        ("qkv", None, "no launch makes 'layers.1.attention.qkv_projected' for 1 tokens"),
        ("attend", {"inputs": {-2: "k_arena"}}, "binds a store twice"),
        ("embed", {"inputs": {}}, "binds the wrong number of buffers"),
    ],
)
def test_doctored_plans_are_refused(
    plan: Plan, label: str, change: dict[str, dict[int, str]] | None, message: str
) -> None:
    def doctor(launches: list[Launch]) -> None:
        matches = [i for i, la in enumerate(launches) if plan.first.kernel(la.kernel).label == label]
        at = matches[-1 if len(matches) == 1 else 1]
        if change is None:
            del launches[at]
            return
        inputs = list(launches[at].inputs)
        for index, name in change["inputs"].items():
            inputs[index] = name
        if not change["inputs"]:
            inputs.pop()
        launches[at] = launches[at].model_copy(update={"inputs": tuple(inputs)})

    with pytest.raises(PlanError, match=message):
        check_plan(edited(plan, doctor))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"mlx_min_tokens": -1}, "mlx_min_tokens is -1; expected at least 0"),
        ({"partition": 0}, "partition is 0; expected at least 1"),
        ({"matmul_tile": 16}, "matmul_tile 16 x matmul_outputs 4 must be at most 32"),
        ({"matvec_outputs": 3}, "matvec_outputs is 3; expected 1, 2, 4"),
        ({"matvec_simdgroups": 4, "matvec_split": 3}, "matvec_split is 3; expected a divisor"),
        ({"prefill_keys": 64}, "prefill_keys is 64; expected 4, 8, 16 or 32"),
    ],
)
def test_geometry_that_no_kernel_is_made_for_is_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Geometry.of(**sizes)


@pytest.fixture(scope="module")
def for_mlx() -> Plan:
    return variant("for-mlx").plan


def is_kernel(launch: Launch) -> bool:
    return isinstance(launch.body, KernelCall)


def test_what_is_made_for_mlx_is_planned_memory(for_mlx: Plan, plan: Plan) -> None:
    step = for_mlx.first.phase("prefill")
    buffers = {b.name: b for b in step.buffers}
    prepared = {name for la in step.launches if la.needs_library and is_kernel(la) for name in la.outputs}
    taken = [
        (la.op, port.name, buffers[name])
        for la in step.launches
        if not isinstance(la.body, KernelCall)
        for port, name in zip(la.body.ports, la.inputs, strict=True)
        if name in prepared
    ]
    assert {port for _, port, _ in taken} == {"weight", "queries", "keys", "values"}
    gate_up = next(b for op, _, b in taken if op == "layers.0.mlp.gated")
    assert gate_up.shape == (1024, 256) and gate_up.size_bytes == 1024 * 256 * 2 <= step.activation_bytes
    weights = sorted({b.name: b for _, port, b in taken if port == "weight"}.values(), key=lambda b: b.offset_bytes)
    assert len(weights) == 4, "alive at once, since one launch makes them"
    assert all(a.offset_bytes + a.size_bytes <= b.offset_bytes for a, b in pairwise(weights))
    keys = next(b for _, port, b in taken if port == "keys")
    assert keys.shape == (1, 2, "context", 32) and keys.size_bytes == for_mlx.arena.context * 2 * 32 * 2
    for op, _, buffer in taken:
        outputs = {name for la in step.launches if la.op == op for name in la.outputs} - {buffer.name}
        for other in (buffers[name] for name in outputs if name in buffers):
            apart = buffer.offset_bytes + buffer.size_bytes <= other.offset_bytes
            assert apart or other.offset_bytes + other.size_bytes <= buffer.offset_bytes
    of_generic = [la for la in plan.first.phase("prefill").launches if la.needs_library]
    assert of_generic and not any(map(is_kernel, of_generic)), "no generic artifact prepares anything"


def test_decode_leaves_one_row_and_attention_to_kernels(for_mlx: Plan) -> None:
    assert not any(la.needs_library or la.yields for la in for_mlx.first.phase("decode").launches), (
        "of 2 sequences at most"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "unread",
            r"unpack_\w+ for layers.0.attention.qkv_projected makes '.*qkv_projected.unpacked', which nothing reads",
        ),
        ("unmade", "the call of MLX's matmul .* reads 'layers.0.attention.qkv_projected.unpacked', which nothing made"),
        ("late", "the call of MLX's matmul .* reads 'layers.0.attention.qkv_projected.unpacked', which nothing made"),
        ("uncalled", "no launch makes 'layers.0.attention.qkv_projected' for 32 tokens on hosts with MLX's functions"),
        ("unyielding", "qkv_projected and the call of MLX's matmul .* both make 'layers.0.attention.qkv_projected'"),
        ("conditional", "no launch makes '.*unpacked' for 32 tokens on hosts with MLX's functions"),
        ("everywhere", r"no launch makes '.*qkv_projected.unpacked' for 32 tokens \[target metal"),
        ("unneeded", "the call of MLX's matmul .* would run on hosts that have no such function"),
        ("twice", r"both make 'layers.0.attention.qkv_projected.unpacked'"),
        ("swapped outputs", "'layers.0.attention.qkv_projected.unpacked', which is not 'layers.0.attention.qkv', nor"),
        ("swapped inputs", "'layers.0.attention.out.unpacked', which is not 'layers.0.attention.qkv', nor unpacked"),
        ("fewer", "the call of MLX's matmul for layers.0.attention.qkv_projected binds the wrong number of buffers"),
        ("stored norm", "takes norm 'layers.0.attention.norm' of f32 as bf16"),
        ("type", "multiplies x of bf16 for a result of f16"),
    ],
)
def test_doctored_plans_for_mlx_are_refused(for_mlx: Plan, change: str, message: str) -> None:
    check_plan(for_mlx)
    step = for_mlx.first.phase("prefill")
    launches = list(step.launches)
    called = next(i for i, la in enumerate(launches) if isinstance(la.body, MatmulCall))
    preparing = next(i for i, la in enumerate(launches) if la.needs_library)
    yielding = next(i for i, la in enumerate(launches) if la.yields is not None)

    def update(index: int, **changes: object) -> None:
        launches[index] = launches[index].model_copy(update=changes)

    if change == "unmade":
        del launches[preparing]
    elif change == "late":
        launches.insert(called, launches.pop(preparing))
    elif change == "uncalled":
        for i, launch in reversed(list(enumerate(launches))):
            if isinstance(launch.body, MatmulCall):
                update(i, when=Condition(dim="tokens", minimum=40))
    elif change == "unyielding":
        update(yielding, yields=None)
    elif change == "conditional":
        update(preparing, when=Condition(dim="tokens", minimum=40))
    elif change == "everywhere":
        update(called, needs_library=False)
    elif change == "unneeded":
        update(called, needs_library=False)
        update(preparing, needs_library=False)
        update(yielding, when=Condition(dim="tokens", minimum=17, maximum=31), yields=None)
    elif change == "twice":
        launches.insert(preparing, launches[preparing])
    elif change == "swapped outputs":
        first, second, *rest = launches[preparing].outputs
        update(preparing, outputs=(second, first, *rest))
    elif change == "unread":
        x, _, *rest = launches[called].inputs
        update(called, inputs=(x, "layers.0.attention.qkv", *rest))
    elif change == "swapped inputs":
        matmuls = [i for i, la in enumerate(launches) if isinstance(la.body, MatmulCall)]
        (x, first, *rest), (y, second, *others) = (launches[i].inputs for i in matmuls[:2])
        update(matmuls[0], inputs=(x, second, *rest))
        update(matmuls[1], inputs=(y, first, *others))
    elif change == "fewer":
        update(called, inputs=launches[called].inputs[:-1])
    elif change == "stored norm":
        update(called, inputs=tuple(name.removesuffix(".bf16") for name in launches[called].inputs))
    else:
        update(called, body=launches[called].body.model_copy(update={"dtype": DType.F16}))
    doctored = step.model_copy(update={"launches": tuple(launches)})
    with pytest.raises(PlanError, match=message):
        check_plan(for_mlx.with_program("metal", phases=(for_mlx.first.phase("decode"), doctored)))


@pytest.mark.parametrize(
    ("changes", "projections", "attention"),
    [
        ({}, True, True),
        ({"activation_dtype": "f32"}, False, False),
        ({"cache": {"dtype": "q8"}}, True, False),
        ({"cache": {"dtype": "f16"}}, True, False),
        ({"model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32, "softcap": 5.0}}, True, False),
        ({"model__attention": {"num_heads": 2, "num_kv_heads": 1, "head_dim": 256}}, True, False),
        ({"model__attention": {"num_heads": 2, "num_kv_heads": 1, "head_dim": 128}}, True, True),
        ({"weights": {"default": "f16"}}, False, True),
    ],
)
def test_what_mlx_would_not_do_as_well_is_not_prepared(
    changes: dict[str, Any], projections: bool, attention: bool
) -> None:
    base = {
        "model__hidden_size": 256,
        "model__mlp": {"intermediate_size": 512},
        "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32},
        "model__tensor_names": "canonical",
        "activation_dtype": "bf16",
        "cache": {"dtype": "bf16"},
        "weights": {"default": "q4_k"},
    }
    plan = compiled(small_spec(**base | changes), Geometry.of(mlx_quantised_min_rows=16, mlx_min_tokens=16)).plan
    launches = plan.first.phase("prefill").launches
    labels = {plan.first.kernel(la.kernel).label for la in launches if la.needs_library and is_kernel(la)}
    assert labels == ({"unpack"} if projections else set()) | ({"attention_inputs"} if attention else set())
    called = {type(la.body) for la in launches if not is_kernel(la) and la.layer is not None}
    assert called == ({MatmulCall} if projections else set()) | ({AttentionCall} if attention else set())


@pytest.mark.parametrize(("groups", "whole"), [(1, 40), (3, 0)])
def test_ranks_keep_all_inputs_of_the_only_group(groups: int, whole: int) -> None:
    """B and C, of 20 channels each."""
    spec = family_spec("ssm", model__recurrent__num_groups=groups)
    stores = {store.name: store for store in arena_geometry(spec, GeometryTable()).stores}
    assert (stores["conv_states"].whole, stores["states"].whole) == (whole, 0)


@pytest.mark.parametrize(
    ("changes", "sizes", "expected"),
    [
        ({}, {}, "tokens >= 16; seqs <= 1"),
        ({}, {"mlx_min_context": 16}, "tokens >= 16; seqs <= 1"),
        ({}, {"mlx_min_context": 40}, "tokens >= 16; seqs <= 1; context >= 40"),
        ({}, {"mlx_min_context": 41}, None),
        ({"model__attention__sliding_window": 24}, {"mlx_min_context": 20}, "tokens >= 16; seqs <= 1; 20..24 context"),
        ({"model__attention__sliding_window": 24}, {"mlx_min_context": 25}, None),
        ({"prefill_chunk": 15}, {}, None),
        ({"model__attention__alibi": 8.0, "model__rope": None}, {}, None),
        ({"model__attention__v_dim": 32}, {}, None),
    ],
)
def test_from_where_on_mlx_has_attention(changes: dict[str, Any], sizes: dict[str, int], expected: str | None) -> None:
    """Where a plan's steps or contexts never get there, nothing is prepared for it."""
    spec = small_spec(activation_dtype="bf16", cache__dtype="bf16", **changes)
    plan = compiled(spec, Geometry.of(mlx_min_tokens=16, **sizes)).plan
    launches = plan.first.phase("prefill").launches
    conditions = {"; ".join(str(la.when).split(" and ")) for la in launches if la.needs_library and is_kernel(la)}
    assert conditions == ({expected} if expected else set())


def test_deterministic_plans_have_no_calls_of_mlx(for_mlx: Plan) -> None:
    assert not for_mlx.first.batch_invariant
    with pytest.raises(PlanError, match=r"steps are to be deterministic, but MLX or a step kernel runs some \[target"):
        check_plan(for_mlx.with_program("metal", batch_invariant=True))


def test_a_lost_result_is_refused(plan: Plan) -> None:
    with pytest.raises(PlanError, match="the phase returns 'logits', which no launch makes"):
        check_plan(edited(plan, lambda launches: launches.__delitem__(slice(-2, None))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("lost", r"the phase returns 'logits', which no launch makes \[target cpu, phase prefill\]"),
        ("early", "reads 'embedded', which nothing made"),
        ("twice", "both make 'layers.0.attention.qkv_projected'"),
        ("nowhere", "makes 'layers.0.attention.qkv_projected', which has no place"),
        ("fewer", "binds the wrong number of buffers"),
    ],
)
def test_the_same_rules_hold_for_the_c_program(change: str, message: str) -> None:
    plan = compiled(small_spec(), target="cpu").plan
    check_plan(plan)
    decode, prefill = plan.first.phases
    launches, buffers = list(prefill.launches), prefill.buffers
    qkv = next(i for i, la in enumerate(launches) if plan.first.kernel(la.kernel).label == "qkv")
    if change == "lost":
        launches.pop()
    elif change == "early":
        launches.insert(0, launches.pop(qkv))
    elif change == "twice":
        launches.insert(qkv, launches[qkv])
    elif change == "nowhere":
        buffers = tuple(b for b in buffers if b.name != launches[qkv].outputs[0])
    else:
        launches[qkv] = launches[qkv].model_copy(update={"inputs": launches[qkv].inputs[:-1]})
    doctored = prefill.model_copy(update={"launches": tuple(launches), "buffers": buffers})
    with pytest.raises(PlanError, match=message):
        check_plan(plan.with_program("cpu", phases=(decode, doctored)))


def test_grids_and_conditions_read_as_people_write_them() -> None:
    assert str(Extent(times=96)) == "96"
    assert str(Extent(dim="tokens", per=8)) == "ceil(tokens/8)"
    assert str(Extent(times=4, dim="seqs")) == "4*seqs"
    assert Extent(times=3, dim="tokens", per=8).value({"tokens": 17}) == 9
    assert str(Condition(dim="tokens", minimum=1, maximum=1)) == "tokens == 1"
    assert str(Condition(dim="context", maximum=1024)) == "context <= 1024"
    assert str(Condition(dim="context", minimum=1025)) == "context >= 1025"
    assert Condition(dim="rows", minimum=2).holds({"rows": 2})
    assert not Condition(dim="rows", maximum=1).holds({"rows": 2})


def test_paged_arenas_of_one_sequence_copy_blocks_too() -> None:
    """It begins within a block of an earlier one, and would write over what that left for others."""
    for mode, copies in (("paged", 1), ("contiguous", 0)):
        artifact = compiled(small_spec(cache={"max_sequences": 1, "mode": mode}), target="cpu")
        assert len(artifact.plan.programs["cpu"].copy_blocks) == copies
