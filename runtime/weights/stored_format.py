"""The format in which a file has a tensor: one run of bytes, or the planes of a quantised matrix.

What the bits of planes mean follows from the shapes of their tensors and the columns of the matrix.
"""

from dataclasses import dataclass

from mlxr.compiler.artifact import WeightFormat, plane_format, plane_names
from mlxr.runtime.weights.element_types import ElementType
from mlxr.runtime.weights.weight_file import TensorInfo, WeightFile


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
    if biases is not None and (biases.shape, biases.type) != (scales.shape, scales.type):
        return f"has {shapes} but biases {list(biases.shape)} {biases.type}"
    group = columns // groups
    format = plane_format(bits * group, scales.type, has_biases=biases is not None, group=group)
    if format is None:
        and_biases = "biases" if biases is not None else "no biases"
        return f"has {shapes} and {and_biases}: {bits} bits in groups of {group}, a quantisation that is not supported"
    planes = (numbers, scales) if biases is None else (numbers, scales, biases)
    return StoredFormat(str(format), tuple(plane.element_type for plane in planes), group)
