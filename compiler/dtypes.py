"""Element types: one table from a type's short name to its size and its Metal spelling."""

from enum import StrEnum


class DType(StrEnum):
    """An element type, spelled as in specs and artifacts."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I32 = "i32"
    U32 = "u32"

    @property
    def size_bytes(self) -> int:
        """Bytes of one element."""
        return 2 if self in (DType.F16, DType.BF16) else 4

    @property
    def metal(self) -> str:
        """The type's name in a kernel signature, as MLX spells it."""
        return _METAL[self]


_METAL = {
    DType.F32: "float",
    DType.F16: "float16_t",
    DType.BF16: "bfloat16_t",
    DType.I32: "int32_t",
    DType.U32: "uint32_t",
}
