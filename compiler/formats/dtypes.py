"""Element types: one table from a type's short name to its size and its Metal spelling."""

from enum import StrEnum


class DType(StrEnum):
    """An element type, spelled as in specs and artifacts."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8 = "q8"
    Q4 = "q4"
    Q4_KEYS = "q4_keys"
    I32 = "i32"
    U32 = "u32"
    U8 = "u8"

    @property
    def size_bytes(self) -> int:
        """Bytes of one element; of types of the cache with scales, which are behind the elements, one byte."""
        return _SIZES.get(self, 4)

    @property
    def is_16_bit(self) -> bool:
        """Whether it is a 16-bit float, which matrix hardware multiplies and sums in f32."""
        return self in (DType.F16, DType.BF16)

    @property
    def metal(self) -> str:
        """The type's name in a kernel signature, as MLX spells it."""
        return _METAL[self]


_SIZES = {DType.F16: 2, DType.BF16: 2, DType.Q8: 1, DType.Q4: 1, DType.Q4_KEYS: 1, DType.U8: 1}
_METAL = {
    DType.F32: "float",
    DType.F16: "float16_t",
    DType.BF16: "bfloat16_t",
    DType.Q8: "int8_t",
    DType.Q4: "uint8_t",
    DType.Q4_KEYS: "int8_t",
    DType.I32: "int32_t",
    DType.U32: "uint32_t",
    DType.U8: "uint8_t",
}
