"""The formula of a projection, for the head of its kernel."""

from mlxr.compiler.targets.epilogue import Epilogue


def formula(e: Epilogue, x: str) -> str:
    """The formula of a projection of x with this epilogue, for the head of a kernel."""
    bias = " + bias" if e.bias else ""
    y = f"{x} @ weight.T{bias}"
    if e.gated:
        gate, up = f"{x} @ gate.T{bias}", f"{x} @ up.T{bias}"
        if e.activation == "swiglu_oai":
            y = f"swiglu_oai({gate}, {up}), weight = [gate; up]"
        else:
            y = f"{e.activation}({gate}) * ({up}), weight = [gate; up]"
    elif e.activation:
        y = f"{e.activation}({y})"
    y = f"{e.out_scale:g} * ({y})" if e.out_scale != 1.0 else y
    y = f"soft_cap({y}, {e.out_cap:g})" if e.out_cap else y
    y = f"sigmoid(gate) * ({y})" if e.gate else y
    if e.residual:
        y = f"residual + {e.residual_scale:g} * ({y})" if e.residual_scale != 1.0 else f"{y} + residual"
    return y
