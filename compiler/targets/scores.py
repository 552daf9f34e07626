"""The scale of attention scores in the kernels of every target: base 2, for exp2, which is cheaper than exp."""

from mlxr.compiler.ir.ops.alibi import Alibi

LOG2_E = 1.4426950408889634
"""log2(e): e^x = 2^(x * LOG2_E). Sinks are multiplied by it; C headers have it as MLXR_LOG2_E."""


def query_scale(scale: float, softcap: float | None) -> float:
    """Factor of the queries: it makes scores ready for exp2, or for tanh where they are capped."""
    return scale / softcap if softcap else scale * LOG2_E


def cap_log2(softcap: float | None) -> float:
    """Factor of the tanh of a capped score, which makes it ready for exp2; 0 if scores are not capped."""
    return softcap * LOG2_E if softcap else 0.0


def slopes_log2(biases: Alibi | None, num_heads: int) -> tuple[float, ...]:
    """What is taken off scores that are ready for exp2, for each token of distance, by head; empty without biases."""
    return () if biases is None else tuple(slope * LOG2_E for slope in biases.slopes(num_heads))
