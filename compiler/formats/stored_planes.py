"""How safetensors files hold a quantised matrix: one tensor for each plane of its format.

MLX keeps the numbers of a quantised matrix in `X.weight`, their scales in `X.scales` and, for affine formats, biases in
`X.biases`; Hugging Face keeps MXFP4 in `X_blocks` and `X_scales`.
"""

from mlxr.compiler.formats.weight_format import WeightFormat

PLANE_ENDINGS = ((".weight", ".scales", ".biases"), ("_blocks", "_scales", "_biases"))
"""Endings of the names of numbers, scales and biases: MLX's and Hugging Face's."""


def plane_names(name: str) -> tuple[str, str, str]:
    """Names of the tensors that hold numbers, scales and biases; `name` is that of the numbers."""
    for endings in PLANE_ENDINGS:
        if name.endswith(endings[0]):
            stem = name.removesuffix(endings[0])
            return stem + endings[0], stem + endings[1], stem + endings[2]
    return name, f"{name}.scales", f"{name}.biases"


def integer_format(bits: int, group: int, scale_type: str, *, has_zeros: bool) -> WeightFormat | None:
    """The affine format for packed integers whose neighbours share a scale, and perhaps an integer that means 0.

    Its groups are the longest ones that divide those of the file. Scales are f32 where there are such integers, since
    their product with a scale has more bits than the scale.

    Args:
        bits: of an integer.
        group: integers of a row that share a scale.
        scale_type: type of the scales, as safetensors headers name it.
        has_zeros: whether there are integers that mean 0; else the middle one does.

    Returns:
        None if there is none.
    """
    scale = "f32" if has_zeros and scale_type in ("F16", "BF16", "F32") else scale_type.lower()
    formats = [
        format
        for format in WeightFormat
        if format.affine
        and (format.affine.bits, format.affine.scale) == (bits, scale)
        and group % format.affine.group == 0
    ]
    return max(formats, key=lambda format: format.block_elements, default=None)


def plane_format(
    block_bits: int, scale_type: str, *, has_biases: bool, group: int | None = None
) -> WeightFormat | None:
    """The format that has such planes.

    Args:
        block_bits: bits that the packed numbers of a block take together.
        scale_type: type of the scales, as safetensors headers name it.
        has_biases: whether there is a plane of biases.
        group: elements of a block; None if it is not known.

    Returns:
        None if no format has such planes, or if several have and `group` is None.
    """
    formats = [
        format
        for format in WeightFormat
        if len(format.planes) == 2 + has_biases
        and format.planes[0].block_bytes * 8 == block_bits
        and format.planes[1].dtype == scale_type.lower()
        and group in (None, format.block_elements)
    ]
    return formats[0] if len(formats) == 1 else None
