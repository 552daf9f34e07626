"""The format in which a file has a tensor: one run of bytes, or the planes of MLX's quantised matrices.

MLX keeps the numbers of a quantised matrix in `X.weight`, their scales in `X.scales` and, for affine formats, biases in
`X.biases`; Hugging Face keeps MXFP4 in `X_blocks` and `X_scales`. What the bits mean follows from the shapes of these
tensors and the columns of the matrix.
"""

from dataclasses import dataclass

from mlxr.compiler.artifact import WeightFormat
from mlxr.runtime.weights.element_types import ElementType
from mlxr.runtime.weights.weight_file import TensorInfo, WeightFile, quoted

_PLANES = {".weight": (".weight", ".scales", ".biases"), "_blocks": ("_blocks", "_scales", "_biases")}
_SCALE_TYPES = {"F16": "f16", "BF16": "bf16", "F32": "f32"}
_MXFP4_GROUP = 32


@dataclass(frozen=True)
class StoredFormat:
    """A format as a file has it.

    Attributes:
        name: of a `WeightFormat`, or of an element type in small letters.
        types: the element type of each plane.
        block_elements: elements of a row that share a scale.
    """

    name: str
    types: tuple[ElementType, ...]
    block_elements: int

    def row_bytes(self, plane: int, columns: int) -> int:
        """Bytes of a row of so many columns in a plane."""
        if len(self.types) == 1:
            return columns // self.types[0].block_elements * self.types[0].block_bytes
        return columns // self.block_elements * WeightFormat(self.name).planes[plane].block_bytes


def planes_of(name: str, stored: StoredFormat) -> tuple[str, ...]:
    """Names of a tensor's planes in the file, of which `name` is the first."""
    return plane_names(name)[: len(stored.types)]


def plane_names(name: str) -> tuple[str, str, str]:
    """What numbers, scales and biases are called if the numbers are called `name`."""
    for ending, (first, second, third) in _PLANES.items():
        if name.endswith(ending):
            stem = name.removesuffix(ending)
            return stem + first, stem + second, stem + third
    return name, f"{name}.scales", f"{name}.biases"


def stored_format(file: WeightFile, name: str, columns: int) -> StoredFormat | str:
    """The format of a tensor with so many columns, or what is wrong with it."""
    info = file.tensors[name]
    _, scales_name, biases_name = plane_names(name)
    scales = file.tensors.get(scales_name) if file.format == "safetensors" else None
    if scales is None:
        if info.element_type.is_readable and info.element_type.is_float:
            return StoredFormat(info.type.lower(), (info.element_type,), info.element_type.block_elements)
        return f"is of type {info.type}, which cannot be read as weights"
    return _planar(info, scales, file.tensors.get(biases_name), columns)


def _planar(numbers: TensorInfo, scales: TensorInfo, biases: TensorInfo | None, columns: int) -> StoredFormat | str:
    if numbers.type not in ("U32", "U8") or not scales.shape or not columns:
        return f"is of type {numbers.type} beside scales; quantised numbers are U32"
    rows = scales.num_elements // scales.shape[-1] if scales.shape[-1] else 0
    groups, bits = scales.shape[-1], 8 * numbers.size_bytes // max(1, rows * columns)
    shapes = f"numbers {list(numbers.shape)} {numbers.type} and scales {list(scales.shape)} {scales.type}"
    if not groups or columns % groups or numbers.size_bytes * 8 != rows * columns * bits:
        return f"has {shapes}, which are not those of {columns} columns"
    group = columns // groups
    if biases is None:
        if scales.type == "U8" and bits == 4 and group == _MXFP4_GROUP:
            return StoredFormat("mxfp4_mlx", (numbers.element_type, scales.element_type), group)
        return f"has {shapes} and no biases: {bits} bits in groups of {group}, a quantisation that is not supported"
    if (biases.shape, biases.type) != (scales.shape, scales.type):
        return f"has {shapes} but biases {list(biases.shape)} {biases.type}"
    name = f"affine{bits}_g{group}_{_SCALE_TYPES.get(scales.type, scales.type)}"
    if name not in list(WeightFormat):
        return f"is {quoted(name)}, which is not supported"
    return StoredFormat(name, (numbers.element_type, scales.element_type, biases.element_type), group)
