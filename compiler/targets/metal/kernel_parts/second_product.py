"""What the kernels of a sum of two products say of the second one."""

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.matrix_kernel import MatrixKernel


def ports_of_second(second: MatrixKernel, bias: DType | None) -> tuple[Port, ...]:
    """Its ports: x, the weight, and the bias if it has one."""
    ports: tuple[Port, ...] = (("second_x", second.activation), ("second_weight", second.layout.dtype))
    return (*ports, ("second_bias", bias)) if bias else ports


def formula_of_second(bias: DType | None) -> str:
    """What follows the formula of the first one."""
    return f", where to the product is added second_x @ second_weight.T{' + second_bias' if bias else ''}"


def table_of_second(second: MatrixKernel, bias: DType | None) -> str:
    """The lines on its buffers, for the head of the kernel."""
    rows = [f"second_x   [tokens, {second.in_features}] {second.activation}", *second.rows_of("second_weight")]
    rows += [f"second_bias [{second.out_features}] {bias}"] if bias else []
    return "".join(f"//   {row}\n" for row in rows)
