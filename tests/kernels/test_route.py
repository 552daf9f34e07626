"""The choice of experts: every router, ties, biases, and logits that are not numbers."""

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import DType
from mlxr.compiler.errors import KernelFault
from mlxr.compiler.targets.metal.kernels.route import RouteKernel
from mlxr_tests.few import few_of
from mlxr_tests.kernel_bench import kernel_text, run_kernel
from mlxr_tests.reference_ops import evaluate
from mlxr_tests.specs import floats, random_array
from mlxr_tests.tolerances import Mismatch, check_op

pytestmark = pytest.mark.usefixtures("kernel_host")

TOKENS = 7
ROUTERS = ["softmax_topk", "topk_softmax", "sigmoid"]
SIZES = [(1, 1), (4, 2), (8, 8), (32, 4), (60, 4), (128, 8), (160, 6), (512, 10), (1024, 64)]


def route_kernel(num_experts, top_k, router, *, bias=None, normalise=False, scale=1.0, groups=(1, 1, 1)):
    return RouteKernel("route", num_experts, top_k, router, DType(bias) if bias else None, normalise, scale, *groups)


def route(kernel, x, bias=None, *, seed=0, text=None):
    """(experts, weights) of sim, once compared with the reference's."""
    inputs = {"x": x} | ({"bias": bias} if bias is not None else {})
    names = ("top_k", "router", "normalise", "scale", "first_expert", "owned", "groups", "top_groups", "judged_by")
    attrs = {name: getattr(kernel, name) for name in names}
    want = evaluate("route", inputs, attrs)
    shape = (x.shape[0], kernel.top_k)
    got = run_kernel(kernel, inputs, {"experts": shape, "weights": shape}, (x.shape[0], 1, 1), seed=seed, text=text)
    experts = np.array(got["experts"])
    if (experts != np.array(want["experts"])).any():
        raise Mismatch(f"experts {experts.tolist()}, expected {np.array(want['experts']).tolist()}")
    check_op("weights", floats(got["weights"]), floats(want["weights"]), "f32")
    return experts, floats(got["weights"])


def numbers(shape, seed, scale=2.0, dtype="f32"):
    return random_array(np.random.default_rng(seed), shape, dtype, scale)


@pytest.mark.parametrize(("size", "router", "normalise"), few_of(SIZES, ROUTERS, [False, True]), ids=str)
def test_routers(size, router, normalise):
    num_experts, top_k = size
    kernel = route_kernel(num_experts, top_k, router, normalise=normalise, scale=2.5 if normalise else 1.0)
    _, weights = route(kernel, numbers((TOKENS, num_experts), 1))
    if normalise or router == "topk_softmax":
        assert np.allclose(weights.sum(axis=-1), kernel.scale, rtol=1e-5)


@pytest.mark.parametrize(
    ("size", "router", "dtype"),
    few_of([(8, 2), (60, 4), (160, 6), (512, 40)], ROUTERS, ["f32", "bf16", "f16"]),
    ids=str,
)
def test_selection_bias(size, router, dtype):
    """It decides the choice, and leaves the weights alone."""
    num_experts, top_k = size
    x, bias = numbers((TOKENS, num_experts), 2), numbers((num_experts,), 3, 1.0, dtype)
    experts, _ = route(route_kernel(num_experts, top_k, router, bias=dtype, normalise=True), x, bias)
    unbiased, _ = route(route_kernel(num_experts, top_k, router), x)
    assert (experts != unbiased).any(), "a bias of the size of the scores must change some choice"


GROUPS = [
    (8, 2, (4, 2, 2)),
    (60, 4, (4, 1, 1)),
    (64, 6, (32, 3, 2)),
    (160, 6, (8, 3, 1)),
    (256, 8, (8, 4, 2)),
    (40, 30, (1, 1, 1)),
]


@pytest.mark.parametrize(("case", "router", "bias"), few_of(GROUPS, ROUTERS, [None, "f32"]), ids=str)
def test_groups(case, router, bias):
    """Experts are all of a few groups, which are not always those of the best experts."""
    num_experts, top_k, groups = case
    x = numbers((TOKENS, num_experts), 4)
    biases = mx.array(-(numbers((num_experts,), 5) ** 2)) if bias else None
    experts, _ = route(route_kernel(num_experts, top_k, router, bias=bias, groups=groups), x, biases)
    size = num_experts // groups[0]
    assert all(len(set(chosen // size)) <= groups[1] for chosen in experts)


@pytest.mark.parametrize("bias", [None, "f32"])
@pytest.mark.parametrize("router", ROUTERS)
def test_ties_go_to_the_lowest_index(router, bias):
    """All equal; equal in pairs across lanes and within one; and numbers whose softmax underflows to equal ones."""
    rows = np.zeros((4, 96), dtype=np.float32)
    rows[1] = np.arange(96) % 48 / 16
    rows[2, ::32] = 1.0
    rows[3] = -np.arange(96) * 10.0
    kernel = route_kernel(96, 5, router, bias=bias)
    zeros = mx.zeros((96,)) if bias else None
    experts, _ = route(kernel, mx.array(rows), zeros)
    assert experts[:3].tolist() == [[0, 1, 2, 3, 4], [47, 95, 46, 94, 45], [0, 32, 64, 1, 2]]
    assert bias or experts[3].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("router", "bias", "groups"), few_of(ROUTERS, [None, "f32"], [(1, 1, 1), (5, 2, 2)]))
def test_experts_are_valid_whatever_the_logits(router, bias, groups):
    """NaN and infinities: what reads the experts' weights must find them."""
    rows = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
    rows[0] = np.nan
    rows[1] = -np.inf
    rows[2, 7:] = np.nan
    rows[3, 3] = np.inf
    rows[4] = np.inf
    rows[5, ::2] = -np.inf
    kernel = route_kernel(40, 9, router, bias=bias, normalise=True, groups=groups)
    inputs = {"x": mx.array(rows)} | ({"bias": mx.array(np.full(40, np.nan, np.float32))} if bias else {})
    got = run_kernel(kernel, inputs, {"experts": (6, 9), "weights": (6, 9)}, (6, 1, 1))
    for chosen in np.array(got["experts"]):
        assert len(set(chosen.tolist())) == 9 and chosen.min() >= 0 and chosen.max() < 40


@pytest.mark.sim_only
def test_the_order_of_threads_changes_nothing():
    kernel, x = route_kernel(128, 8, "softmax_topk", normalise=True), numbers((TOKENS, 128), 5)
    first, second = (route(kernel, x, seed=seed) for seed in (1, 2))
    assert (first[0] == second[0]).all() and (first[1] == second[1]).all()


PLAIN, BIASED = route_kernel(60, 4, "softmax_topk", normalise=True), route_kernel(60, 4, "sigmoid", bias="f32")
GROUPED = route_kernel(60, 4, "sigmoid", bias="f32", groups=(4, 2, 2))
MISTAKES = [
    (GROUPED, "lane == holder ? second : first", "first"),
    (GROUPED, "open = open && lane != winner;", ""),
    (PLAIN, "left[i] = winner == lane + 32u * i ? 0u : left[i];", ""),
    (PLAIN, " / sum", ""),
    (PLAIN, "bits >> 31 ? ~bits : bits | 0x80000000u", "bits"),
    (BIASED, "as_type<uint>(own[i] == 0.0f ? 0.0f : own[i])", "as_type<uint>(logit[i])"),
    (BIASED, "value = winner == lane + 32u * i ? logit[i]", "value = winner == lane + 32u * i ? own[i]"),
    (PLAIN, "rank == lane + 32u * j", "rank + 1 == lane + 32u * j"),
]


@pytest.mark.long
@pytest.mark.sim_only
@pytest.mark.parametrize(("kernel", "old", "new"), MISTAKES)
def test_mistake_is_noticed(kernel, old, new):
    _, text = kernel_text(kernel)
    assert old in text, "the mistake must be possible"
    seeds = range(2, 40, 2)
    cases = [(numbers((TOKENS, 60), seed), numbers((60,), seed + 1) if kernel.bias else None) for seed in seeds]
    route(kernel, *cases[0])
    with pytest.raises((Mismatch, KernelFault)):
        for x, bias in cases:  # some numbers hide some mistakes
            route(kernel, x, bias, text=text.replace(old, new))
