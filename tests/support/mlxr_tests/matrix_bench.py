"""Single kernels that multiply by a weight matrix, with any mix of formats, numbers of rows and dims."""

from collections.abc import Sequence
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import layout_of
from mlxr.compiler.targets.epilogue import Epilogue
from mlxr.compiler.targets.metal.kernel_parts.kernel import MetalKernel
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ProjectionKernel
from mlxr.compiler.targets.metal.kernels.embed import EmbedKernel
from mlxr.compiler.targets.metal.kernels.gemm import GEMM_ROWS, GEMM_SIMDGROUPS, GEMM_TILE, GemmKernel
from mlxr.compiler.targets.metal.kernels.gemm_mma import GEMM_MMA_TILE, GemmMmaKernel
from mlxr.compiler.targets.metal.kernels.matmul import MatmulKernel
from mlxr.compiler.targets.metal.kernels.matvec import MatvecKernel
from mlxr.compiler.targets.metal.kernels.unpack import UnpackKernel
from mlxr.compiler.targets.metal.render import KernelSource, render
from mlxr.compiler.targets.provenance import Provenance
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.hosts.sim.kernel import SimBuffer
from mlxr_tests.format_planes import joined, numbers_of, random_planes
from mlxr_tests.kernel_host import load_kernel
from mlxr_tests.repetition import varied
from mlxr_tests.specs import floats

Floats = np.ndarray[Any, np.dtype[np.float32]]
Style = Literal["one", "several", "many", "many_mma"]
KERNELS: dict[Style, tuple[type[ProjectionKernel], int]] = {
    "one": (MatvecKernel, 1),
    "several": (MatmulKernel, 8),
    "many": (GemmKernel, GEMM_TILE),
    "many_mma": (GemmMmaKernel, GEMM_MMA_TILE),
}
"""The kernel of each style, and the rows of x per threadgroup."""
STYLES: tuple[Style, ...] = ("one", "several", "many")
"""The styles that take activations of any type."""


class MatrixBench:
    """A random matrix of parts with these formats and numbers of rows.

    Attributes:
        numbers: the matrix, [rows, columns] f32, by the definition of the formats.
        buffer: its bytes as kernels read them.
    """

    def __init__(
        self,
        parts: Sequence[tuple[str, int]],
        columns: int,
        seed: int = 0,
        activation: str = "f32",
        gated: bool = False,
    ) -> None:
        rng = np.random.default_rng(varied(seed))
        planes_of_parts = [
            (WeightFormat(format), random_planes(rng, WeightFormat(format), (rows, columns), columns**-0.5))
            for format, rows in parts
        ]
        self.layout = layout_of([(format, len(planes[0])) for format, planes in planes_of_parts], columns)
        self.numbers: Floats = np.concatenate(
            [numbers_of(format, planes, columns) for format, planes in planes_of_parts]
        )
        self.buffer = joined(planes_of_parts, columns, self.layout.size_bytes)
        assert np.isfinite(self.numbers).all() and self.numbers.std() > 0, "the numbers must be able to show a mistake"
        self.activation = DType(activation)
        self.gated = gated

    def project(self, x: Floats, style: Style, unroll: int = 1, **epilogue: Any) -> Floats:
        """A kernel's product of the matrix and x [rows, columns], first rounded to the activations' type; f32."""
        outs = self.layout.rows // (2 if self.gated else 1)
        halves, many = 2 if self.gated else 1, style.startswith("many")
        kernel_class, tile = KERNELS[style]
        kernel = kernel_class(
            label=style,
            in_features=self.layout.columns,
            out_features=outs,
            layout=self.layout,
            activation=self.activation,
            norm=None,
            epilogue=Epilogue(out=DType.F32, gated=self.gated, **epilogue),
            outs=(GEMM_ROWS if many else 4) // halves,
            simdgroups=GEMM_SIMDGROUPS if many else 2,
            gather=False,
            tile=tile,
            unroll=unroll,
        )
        dims = np.array([len(x), 1, len(x), 0, 0, 0, 0, 0], dtype=np.uint32)
        inputs = {"x": mx.array(x).astype(MLX_DTYPES[self.activation]), "weight": self.buffer, "dims": dims}
        mx.eval(inputs["x"])
        out = np.full((len(x), outs), np.nan, dtype=np.float32)
        _launch(kernel, inputs, {"out": out}, (kernel.threadgroups, -(-len(x) // kernel.tile), 1))
        return out

    def rows(self, ids: Sequence[int], scale: float = 1.0, first_row: int | None = None) -> Floats:
        """Rows of the matrix, from the embedding kernel."""
        kernel = EmbedKernel("embed", self.layout, self.activation, scale, first_row)
        inputs = {"token_ids": np.array(ids, dtype=np.int32), "table": self.buffer}
        out = np.full((len(ids), self.layout.columns), np.nan, dtype=np.float32)
        _launch(kernel, inputs, {"out": out}, (len(ids), 1, 1))
        return out

    def unpacked(self, unroll: int) -> Floats:
        """The whole matrix from the unpack kernel, in the type of activations, which has 16 bits."""
        return unpacked_together([self], unroll)[0]


def rounded(numbers: Floats, dtype: str) -> Floats:
    """Numbers, f32, rounded to this 16-bit type."""
    return floats(mx.array(numbers).astype(MLX_DTYPES[dtype]))


def unpacked_together(benches: Sequence[MatrixBench], unroll: int) -> list[Floats]:
    """Several whole matrices from one launch of the unpack kernel, in the first one's type of activations."""
    activation = benches[0].activation
    kernel = UnpackKernel("unpack", tuple(bench.layout for bench in benches), activation, unroll)
    shapes = [(bench.layout.rows, bench.layout.columns) for bench in benches]
    outs = {
        name: np.full(shape, 0xFFFF, dtype=np.uint16) for (name, _), shape in zip(kernel.outputs, shapes, strict=True)
    }
    inputs = {name: bench.buffer for (name, _), bench in zip(kernel.inputs, benches, strict=True)}
    _launch(kernel, inputs, outs, (kernel.threadgroups, 1, 1))
    return [floats(mx.array(out).view(MLX_DTYPES[activation])) for out in outs.values()]


def _launch(
    kernel: MetalKernel, inputs: dict[str, Any], outs: dict[str, np.ndarray[Any, Any]], grid: tuple[int, int, int]
) -> None:
    bound = [SimBuffer.of(inputs[name], writable=False, name=name) for name, _ in kernel.inputs]
    bound += [SimBuffer.of(outs[name], writable=True, name=name) for name, _ in kernel.outputs]
    source = render(kernel, Provenance("test", "test", "0" * 12))
    load_kernel(source.text, source.name, kernel.threads).launch(bound, grid, (kernel.threads, 1, 1), seed=1)


def plant(monkeypatch: pytest.MonkeyPatch, host: str, old: str, new: str) -> None:
    """Plants a mistake in the text of the benches' kernels, on sim."""
    if host != "sim":
        pytest.skip("a card may not show a race or a read out of bounds")

    correct = render

    def mistaken(kernel: MetalKernel, origin: Provenance) -> KernelSource:
        source = correct(kernel, origin)
        assert old in source.text, "the text has no place for the mistake"
        return KernelSource(source.name, source.text.replace(old, new))

    monkeypatch.setattr("mlxr_tests.matrix_bench.render", mistaken)
