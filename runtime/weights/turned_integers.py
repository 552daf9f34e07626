"""Matrices of packed integers that lie transposed, as AWQ and GPTQ write them, read as planes of an affine format.

`X.qweight` has the integers by columns of the matrix, `X.scales` a scale for each group of columns of a row, and
`X.qzeros` which integer means 0. AWQ packs neighbouring rows into a word, in an order of its own; GPTQ packs columns,
and stores what means 0 less 1: where it is 0, the word has borrowed from its neighbour. An element is (integer - zero)
* scale. Scales and biases of the format are f32, which holds -zero * scale, so nothing is lost. Words are turned and
packed anew as rows are read. Groups longer than those of the format are several with the same scale.

With GPTQ's `desc_act`, `X.g_idx` says which group each column is of. No format has columns of one group here and
there: such a matrix is read as floats of the type of its scales, as other programs do.

Sources: AutoAWQ (its gemm kernels), AutoGPTQ and GPTQModel (`convert_gptq_v1_to_v2_format_module`), for the meaning
of the bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import integer_format
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.element_types import ElementType, decode, encode
from mlxr.runtime.weights.packed_integers import Bytes, MadePlane, unpacked
from mlxr.runtime.weights.stored_tensor import StoredTensor

if TYPE_CHECKING:
    from mlxr.runtime.weights.tensor_rows import TensorBytes

Places = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]
_U32, _F32 = ElementType("U32", 1, 4), ElementType("F32", 1, 4)
_AWQ_BITS = 4
_AWQ_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""Where AWQ has the integer of each of eight neighbouring rows, from the lowest bits on."""


@dataclass(frozen=True)
class TurnedPlane(MadePlane):
    """A plane of the affine format, or a matrix of floats.

    Attributes:
        of: the file's scales; of the plane of numbers its integers.
        zeros: the file's integers that mean 0.
        order: GPTQ's group of each column, of a matrix of floats.
        integers: of a matrix of floats, the file's integers.
        is_awq: whether rows are packed, as AWQ does.
    """

    order: StoredTensor | None = None
    integers: StoredTensor | None = None
    is_awq: bool = False

    @property
    def stored(self) -> tuple[StoredTensor, ...]:
        """The tensors of the file that it is made of."""
        return tuple(t for t in (self.of, self.zeros, self.order, self.integers) if t is not None)

    def rows(self, source: "TensorBytes", rows: Places, groups: range) -> Bytes:
        """The bytes of some rows: [rows, bytes]. Groups are words of the plane of numbers, or columns of floats."""
        assert self.of is not None, "each plane is made of a tensor"
        places = np.arange(groups.start, groups.stop)
        made: npt.NDArray[Any]
        if self.order is not None and self.integers is not None:
            of_columns = source.rows(self.order).reshape(-1).view("<i4")[places].astype(np.int64)
            scales, zeros = self._scales(source, self.of, rows, of_columns), self._zeros(source, rows, of_columns)
            numbers = unpacked(_words(source, self.integers)[:, rows], places, self.bits).T
            made = encode((numbers.astype(np.float32) - zeros) * scales, self.type.lower())
        elif self.type == "U32":
            made = self._numbers(source, self.of, rows, places)
        else:
            places //= self.repeat
            made = self._scales(source, self.of, rows, places)
            if self.is_biases:
                made = made * -self._zeros(source, rows, places)
        return np.ascontiguousarray(made).view(np.uint8)

    def _scales(self, source: "TensorBytes", scales: StoredTensor, rows: Places, groups: Places) -> Floats:
        stored = source.rows(scales).reshape(*scales.shape, -1)[:, rows][groups]
        numbers = decode(np.ascontiguousarray(stored).reshape(len(groups), -1), scales.element_type)
        return np.asarray(numbers, np.float32).T

    def _numbers(self, source: "TensorBytes", integers: StoredTensor, rows: Places, words: Places) -> Words:
        stored = _words(source, integers)
        if not self.is_awq:  # a word has the columns that it has here
            return stored[:, rows][words].T
        numbers = np.ascontiguousarray(_of_words(stored[words[0] * 8 : words[-1] * 8 + 8], rows).T)
        return (numbers[:, ::2] | numbers[:, 1::2] << 4).view(np.uint32)

    def _zeros(self, source: "TensorBytes", rows: Places, groups: Places) -> Floats:
        assert self.zeros is not None, "files have them"
        words = _words(source, self.zeros)
        if self.is_awq:
            return _of_words(words[groups], rows).T.astype(np.float32)
        most = (1 << self.bits) - 1
        if 32 % self.bits:  # 1 was taken off each by itself
            return ((unpacked(words.T, rows, self.bits) + 1) & most)[:, groups].astype(np.float32)
        words = words + np.uint32(0xFFFFFFFF // most)  # 1 was taken off all of a word at once
        return unpacked(words.T, rows, self.bits)[:, groups].astype(np.float32)


def _words(source: "TensorBytes", tensor: StoredTensor) -> Words:
    return source.rows(tensor).reshape(-1).view("<u4").reshape(tensor.shape)


def _of_words(words: Words, rows: Places) -> Bytes:
    """AWQ's integers of some rows: [columns, rows]."""
    places = _AWQ_PLACES[rows % 8]
    stored = words.view(np.uint8).reshape(len(words), -1)[:, rows // 8 * 4 + places // 2]
    found: Bytes = stored >> (places % 2 * 4).astype(np.uint8) & np.uint8(15)
    return found


def with_turned(tensors: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
    """The tensors, with those of AWQ and GPTQ as planes: `X.weight`, `X.scales`, `X.biases`."""
    named: dict[str, StoredTensor] | None = None
    for name, integers in tensors.items():
        stem = name.removesuffix(".qweight")
        scales, zeros = tensors.get(f"{stem}.scales"), tensors.get(f"{stem}.qzeros")
        if stem == name or scales is None or zeros is None:
            continue
        planes = _planes(stem, integers, scales, zeros, tensors.get(f"{stem}.g_idx"))
        if planes is not None:
            named = dict(tensors) if named is None else named
            for ending in ("qweight", "qzeros", "scales", "g_idx"):
                named.pop(f"{stem}.{ending}", None)
            named |= {plane.name: plane for plane in planes}
    return tensors if named is None else named


def _planes(
    stem: str, integers: StoredTensor, scales: StoredTensor, zeros: StoredTensor, order: StoredTensor | None
) -> tuple[TurnedPlane, ...] | None:
    """The planes of a matrix, or the matrix as floats; None if the shapes are of no such one."""
    if {integers.type, zeros.type} != {"I32"} or not all(len(each.shape) == 2 for each in (integers, scales, zeros)):
        return None
    groups, height = scales.shape
    bits, rest = divmod(32 * zeros.shape[1], max(1, height))
    if rest or bits not in (2, 3, 4, 8) or zeros.shape[0] != groups or not groups:
        return None
    is_awq = integers.shape[1] != height
    width = integers.shape[0] if is_awq else integers.shape[0] * 32 // bits
    if is_awq and (bits != _AWQ_BITS or integers.shape[1] * 8 != height or order is not None):
        return None
    if not width or (order is not None and (order.type, order.shape) != ("I32", (width,))):
        return None
    if order is not None and not _is_sorted(of_columns := _read(order), -(-width // groups)):
        if scales.type not in ("F16", "BF16", "F32") or of_columns.min() < 0 or of_columns.max() >= groups:
            return None
        common = (f"{stem}.weight", (height, width), scales.element_type, scales.file, scales.offset)
        return (TurnedPlane(*common, of=scales, zeros=zeros, bits=bits, order=order, integers=integers),)
    format = None if width % groups else integer_format(bits, width // groups, scales.type, has_zeros=True)
    if format is None or not scales.element_type.is_float:
        return None
    repeat = width // groups // format.block_elements

    def plane(ending: str, of: StoredTensor, columns: int, kind: ElementType) -> TurnedPlane:
        is_biases = ending == "biases"
        return TurnedPlane(
            f"{stem}.{ending}",
            (height, columns),
            kind,
            of.file,
            of.offset,
            of=of,
            zeros=zeros if is_biases else None,
            bits=bits,
            repeat=repeat,
            is_biases=is_biases,
            is_awq=is_awq,
        )

    return (
        plane("weight", integers, width * bits // 32, _U32),
        plane("scales", scales, groups * repeat, _F32),
        plane("biases", scales, groups * repeat, _F32),
    )


def _read(order: StoredTensor) -> npt.NDArray[np.int32]:
    try:
        return np.fromfile(order.file, "<i4", order.num_elements, offset=order.offset)
    except OSError as error:
        raise WeightsError(f"{order.file}: cannot be read: {error.strerror or error}") from error


def _is_sorted(of_columns: npt.NDArray[np.int32], group: int) -> bool:
    """Whether neighbours make up the groups, one group after the other."""
    return np.array_equal(of_columns, np.arange(len(of_columns)) // group)
