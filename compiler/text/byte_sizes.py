"""Sizes in bytes, as text for people."""


def size(size_bytes: int) -> str:
    """A number of bytes as text: 1.5 GiB."""
    value, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
