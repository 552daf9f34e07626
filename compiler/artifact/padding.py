"""The sizes that hosts fill steps of prompts up to, so that they meet no new shapes."""

_LEAST_PADDED = 8


def padded(tokens: int, padding: int, most: int) -> int:
    """The next of the sizes that `chunk_padding` of the geometry gives, at most `most`."""
    if not padding:
        return tokens
    if tokens <= padding:
        size = _LEAST_PADDED
        while size < min(tokens, padding):
            size *= 2
        return min(size, most)
    step = max(padding, 1 << (tokens - 1).bit_length() - 4)
    return min(-(-tokens // step) * step, most)
