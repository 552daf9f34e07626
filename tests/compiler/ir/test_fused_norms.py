"""The rules of norms that products and attention take in."""

import pytest

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.checks import RuleError
from mlxr.compiler.ir.ops.attention import RopeReadAttention
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.compiler.ir.tensor import Tensor

ROW, WIDE, WEIGHT = Tensor(("tokens", 48), DType.F32), Tensor(("tokens", 24), DType.F32), Tensor((48,), DType.F32)
PRODUCT = {"x": ROW, "weight": Tensor((24, 48), DType.F32)}
ADDS = Projection(DType.F32, added_eps=0.1)
ADDED = PRODUCT | {"added": ROW, "added_norm": WEIGHT}


def test_a_product_gives_the_sum_that_it_multiplies() -> None:
    pair = {"own_norm": WEIGHT, "second": ROW, "second_norm": WEIGHT, "added_scale": Tensor((1,), DType.F32)}
    for inputs in (ADDED, ADDED | pair):
        assert ADDS.infer(inputs) == {"out": WIDE, "stream": ROW}


@pytest.mark.parametrize(
    ("product", "inputs", "message"),
    [
        (ADDS, PRODUCT, "there is added_eps but added or added_norm is not bound"),
        (Projection(DType.F32), ADDED, "ports of what is added are bound but added_eps is none"),
        (ADDS, ADDED | {"added": WIDE}, "added is not like x"),
        (ADDS, ADDED | {"second": ROW}, "own_norm, second, second_norm are bound together"),
        (ADDS, ADDED | {"added_scale": WEIGHT}, r"added_scale is \[48\]; expected \[1\]"),
        (Projection(DType.F32, added_eps=0.0), ADDED, "added_eps is 0.0; expected a number greater than 0"),
    ],
)
def test_a_product_refuses(product: Projection, inputs: dict[str, Tensor], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        product.infer(inputs)


@pytest.mark.parametrize(
    ("changes", "ports", "message"),
    [
        ({}, {"q_norm": WEIGHT}, "norm_eps is none, but weights are bound"),
        ({"norms_values": True}, {}, "norm_eps is none, but weights are bound or values normalised"),
        ({"norm_eps": 0.1, "norm_scope": "heads"}, {"q_norm": WEIGHT}, r"q_norm is \[48\]; expected \[96\]"),
        ({"norm_eps": 0.1, "v_dim": 16}, {}, "heads are normalised, but v_dim is 16; expected none"),
        ({"norm_eps": 0.0}, {}, "norm_eps is 0.0; expected a number greater than 0"),
    ],
)
def test_attention_refuses(changes: dict[str, object], ports: dict[str, Tensor], message: str) -> None:
    heads: dict[str, object] = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 48, "rotary_dim": 0}
    heads |= {"rope_layout": "half", "rope_scale": 1.0, "scale": 1.0, "window": None, "softcap": None}
    op = RopeReadAttention(**heads | {"temperature_beta": None, "temperature_context": None} | changes)  # type: ignore[arg-type]
    with pytest.raises(RuleError, match=message):
        op.infer({"qkv": Tensor(("tokens", 96), DType.F32)} | ports)
