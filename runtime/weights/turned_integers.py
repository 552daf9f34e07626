"""Matrices of packed integers that lie transposed, as AWQ and GPTQ write them, read as planes of an affine format.

`X.qweight` has the integers by columns of the matrix, `X.scales` a scale for each group of columns of a row, and
`X.qzeros` which integer means 0. AWQ packs neighbouring rows into a word, in an order of its own; GPTQ packs columns,
and stores what means 0 less 1: where it is 0, the word has borrowed from its neighbour. An element is (integer - zero)
* scale. Scales and biases of the format are f32, which holds -zero * scale, so nothing is lost. Words are turned and
packed anew as rows are read.

Sources: AutoAWQ (its gemm kernels), AutoGPTQ and GPTQModel (`convert_gptq_v1_to_v2_format_module`), for the meaning
of the bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.element_types import ElementType, decode
from mlxr.runtime.weights.packed_integers import Bytes, MadePlane
from mlxr.runtime.weights.stored_tensor import StoredTensor, quoted

if TYPE_CHECKING:
    from mlxr.runtime.weights.tensor_rows import TensorBytes

Places = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]
_U32, _F32 = ElementType("U32", 1, 4), ElementType("F32", 1, 4)
_AWQ_BITS = 4
_AWQ_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""Where AWQ has the integer of each of eight neighbouring rows, from the lowest bits on."""


@dataclass(frozen=True)
class TurnedPlane(MadePlane):
    """A plane of the affine format.

    Attributes:
        of: the file's scales; of the plane of numbers its integers.
        zeros: the file's integers that mean 0.
        repeat: columns of a group.
        order: GPTQ's group of each column, which must be the usual ones; None: there is none.
        is_awq: whether rows are packed, as AWQ does.
    """

    order: StoredTensor | None = None
    is_awq: bool = False

    @property
    def stored(self) -> tuple[StoredTensor, ...]:
        """The tensors of the file that it is made of."""
        return tuple(tensor for tensor in (self.of, self.zeros, self.order) if tensor is not None)

    def rows(self, source: "TensorBytes", rows: Places, groups: range) -> Bytes:
        """The bytes of some rows: [rows, bytes]. Groups are words of the plane of numbers."""
        assert self.of is not None, "each plane is made of a tensor"
        places = np.arange(groups.start, groups.stop)
        made: npt.NDArray[Any]
        if self.type == "U32":
            made = self._numbers(source, self.of, rows, places)
        else:
            stored = source.rows(self.of).reshape(*self.of.shape, -1)[:, rows][places]
            numbers = decode(np.ascontiguousarray(stored).reshape(len(places), -1), self.of.element_type)
            made = np.asarray(numbers, np.float32).T
            if self.is_biases:
                made = made * -self._zeros(source, rows, places)
        return np.ascontiguousarray(made).view(np.uint8)

    def _numbers(self, source: "TensorBytes", integers: StoredTensor, rows: Places, words: Places) -> Words:
        stored = _words(source, integers)
        if self.order is not None:
            self._check_order(source, self.order)
        if not self.is_awq:  # a word has the columns that it has here
            return stored[:, rows][words].T
        numbers = np.ascontiguousarray(_of_words(stored[words[0] * 8 : words[-1] * 8 + 8], rows).T)
        return (numbers[:, ::2] | numbers[:, 1::2] << 4).view(np.uint32)

    def _zeros(self, source: "TensorBytes", rows: Places, groups: Places) -> npt.NDArray[np.float32]:
        assert self.zeros is not None, "files have them"
        words = _words(source, self.zeros)[groups]
        if self.is_awq:
            return _of_words(words, rows).T.astype(np.float32)
        in_word, most = 32 // self.bits, (1 << self.bits) - 1
        shifts = (rows % in_word * self.bits).astype(np.uint32)
        words = words[:, rows // in_word] + np.uint32(0xFFFFFFFF // most)  # 1 was taken off all of a word at once
        zeros = words >> shifts & np.uint32(most)
        return zeros.T.astype(np.float32)

    def _check_order(self, source: "TensorBytes", order: StoredTensor) -> None:
        groups = source.rows(order).reshape(-1).view("<i4")
        if not np.array_equal(groups, np.arange(len(groups)) // self.repeat):
            raise WeightsError(
                f"{order.file}: {quoted(order.name)} has columns in another order than their groups (desc_act), which "
                "is not supported: take a model that was quantised without, or its GGUF file"
            )


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
) -> tuple[TurnedPlane, TurnedPlane, TurnedPlane] | None:
    """The planes of a matrix; None if the shapes are of no such one."""
    if {integers.type, zeros.type} != {"I32"} or not all(len(each.shape) == 2 for each in (integers, scales, zeros)):
        return None
    groups, height = scales.shape
    bits, rest = divmod(32 * zeros.shape[1], max(1, height))
    if rest or bits not in (2, 4, 8) or zeros.shape[0] != groups or not groups or not scales.element_type.is_float:
        return None
    is_awq = integers.shape[1] != height
    width = integers.shape[0] if is_awq else integers.shape[0] * 32 // bits
    if width % groups or (is_awq and (bits != _AWQ_BITS or integers.shape[1] * 8 != height)):
        return None
    if order is not None and (order.type, order.shape) != ("I32", (width,)):
        return None

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
            repeat=width // groups,
            is_biases=is_biases,
            order=order if ending == "weight" else None,
            is_awq=is_awq,
        )

    return (
        plane("weight", integers, width * bits // 32, _U32),
        plane("scales", scales, groups, _F32),
        plane("biases", scales, groups, _F32),
    )
