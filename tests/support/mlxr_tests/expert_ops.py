"""Ops of mixtures of experts with fitting inputs, for the tests of their rules: kind, inputs, attributes, outputs."""

from typing import Any

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.tensor import Tensor

F32, BF16 = DType.F32, DType.BF16
CHOSEN: dict[str, Any] = {"num_experts": 4, "top_k": 2, "dtype": "bf16"}
ROUTE: dict[str, Any] = {"top_k": 2, "router": "sigmoid", "normalise": True, "scale": 2.5}
ROUTE |= {"groups": 1, "top_groups": 1, "judged_by": 1, "first_expert": None, "owned": None}
UNGATED = {"weighs": False, "eps": None, "norm_kind": None, "activation": "relu2", "gated": False, "limit": None}
UNGATED |= {"shared_limit": None}
GATED = {"weighs": False, "eps": 0.1, "norm_kind": "rms", "activation": "silu", "gated": True, "limit": None}
GATED |= {"shared_limit": None}


def tokens(width: int, dtype: DType = F32) -> Tensor:
    """A value with a row for each token."""
    return Tensor(("tokens", width), dtype)


def matrix(*shape: int, dtype: DType = F32) -> Tensor:
    """A weight."""
    return Tensor(shape, dtype)


CHOICE = tokens(2, DType.I32)
CHOICES = {"experts": CHOICE, "weights": tokens(2)}
EXPERTS: dict[str, tuple[str, dict[str, Tensor], dict[str, Any], dict[str, Tensor]]] = {
    "route": (
        "route",
        {"x": tokens(4), "bias": matrix(4)},
        ROUTE,
        CHOICES,
    ),
    "route, of a rank with fewer experts than a token has": (
        "route",
        {"x": tokens(4)},
        ROUTE | {"first_expert": 3, "owned": 1},
        CHOICES,
    ),
    "expert_linear": (
        "expert_linear",
        {"x": tokens(48), "weight": matrix(4 * 24, 48), "experts": CHOICE, "bias": matrix(96)},
        CHOSEN,
        {"out": tokens(48, BF16)},
    ),
    "expert_linear, of experts' results": (
        "expert_linear",
        {"x": tokens(48), "weight": matrix(4 * 40, 24), "experts": CHOICE},
        CHOSEN,
        {"out": tokens(80, BF16)},
    ),
    "expert_sum": (
        "expert_sum",
        {"x": tokens(48, BF16), "weights": Tensor(("tokens", 2), F32)},
        {"top_k": 2},
        {"out": tokens(24, BF16)},
    ),
    "expert_projection": (
        "expert_projection",
        {
            "x": tokens(48),
            "weight": matrix(4 * 26, 48),
            "experts": CHOICE,
            "norm": matrix(48),
            "norm_bias": matrix(48),
            "bias": matrix(104),
        },
        CHOSEN | {"eps": 0.1, "norm_kind": "layer", "activation": "swiglu_oai", "gated": True, "limit": 7.0},
        {"out": tokens(26, BF16)},
    ),
    "expert_combine": (
        "expert_combine",
        {
            "x": tokens(26),
            "weight": matrix(4 * 48, 13),
            "experts": CHOICE,
            "weights": Tensor(("tokens", 2), F32),
            "bias": matrix(192),
            "residual": tokens(48, BF16),
        },
        CHOSEN | {"residual_scale": 0.5, "shared_apart": False},
        {"out": tokens(48, BF16)},
    ),
    "expert_combine, with a shared expert": (
        "expert_combine",
        {
            "x": tokens(26),
            "weight": matrix(4 * 48, 13),
            "experts": CHOICE,
            "weights": Tensor(("tokens", 2), F32),
            "shared_x": tokens(21),
            "shared": matrix(48, 21),
            "shared_gate": tokens(1),
        },
        CHOSEN | {"residual_scale": 1.0, "shared_apart": False},
        {"out": tokens(48, BF16)},
    ),
    "routed_projection": (
        "routed_projection",
        {"x": tokens(48), "weight": matrix(4 * 26, 48), "logits": tokens(4), "selection_bias": matrix(4)},
        CHOSEN | ROUTE | UNGATED,
        {"out": tokens(52, BF16)} | CHOICES,
    ),
    "routed_projection, with a shared expert": (
        "routed_projection",
        {
            "x": tokens(48),
            "weight": matrix(4 * 26, 48),
            "logits": tokens(4),
            "norm": matrix(48),
            "bias": matrix(104),
            "shared": matrix(42, 48),
            "gate_weight": matrix(1, 48),
        },
        CHOSEN | ROUTE | GATED,
        {"out": tokens(26, BF16)} | CHOICES | {"shared_out": tokens(21, BF16), "shared_gate": tokens(1)},
    ),
    "routed_projection, of weighed inputs": (
        "routed_projection",
        {"x": tokens(48), "weight": matrix(4 * 26, 48), "logits": tokens(4)},
        CHOSEN | ROUTE | UNGATED | {"weighs": True},
        {"out": tokens(52, BF16), "experts": CHOICE},
    ),
}
