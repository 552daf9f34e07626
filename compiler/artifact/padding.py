"""The sizes to which hosts pad prefill steps, so that they meet few shapes."""

_SMALLEST = 8


def padded(tokens: int, padding: int, most: int) -> int:
    """The padded size of a step: the next size that `chunk_padding` of the geometry allows, at most `most`."""
    if not padding:
        return tokens
    if tokens <= padding:
        size = _SMALLEST
        while size < min(tokens, padding):
            size *= 2
        return min(size, most)
    step = max(padding, 1 << (tokens - 1).bit_length() - 4)
    return min(-(-tokens // step) * step, most)
