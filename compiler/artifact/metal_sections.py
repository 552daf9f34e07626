"""The sections of a complete Metal file that MLX's `metal_kernel` takes."""

_HEADER = "// ---- header\n"
_KERNEL = "// ---- kernel\n"
_BODY = ") {\n"


def header_of(text: str) -> str:
    """The text between the includes and the kernel."""
    return text[text.index(_HEADER) + len(_HEADER) : text.index(_KERNEL)]


def body_of(text: str) -> str:
    """The text between the kernel's signature and its last brace."""
    start = text.index(_BODY, text.index(_KERNEL)) + len(_BODY)
    return text[start : text.rindex("}")]
