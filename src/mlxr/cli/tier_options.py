"""The options that say how much of the KV cache is kept outside the arena, and what statistics say of the cache."""

import argparse

from mlxr.compiler.spec.fields import parse_size
from mlxr.runtime.cache.tiers.tier_sizes import NO_TIERS, TierSizes
from mlxr.runtime.engine.core_stats import CoreStats


def add_tier_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options; `load_model` reads them."""
    parser.add_argument(
        "--kv-memory",
        type=size_argument,
        default=0,
        metavar="SIZE",
        help="keep so much of the KV cache in host memory when the arena needs the room, such as 2GiB (default: 0)",
    )
    parser.add_argument(
        "--kv-disk",
        type=size_argument,
        default=0,
        metavar="SIZE",
        help="keep so much of the KV cache in files, such as 10GiB, so that prompts that begin alike need not be read "
        "again by later commands (default: 0)",
    )


def tier_sizes(args: argparse.Namespace) -> TierSizes:
    """What the options say; nothing for a command without them."""
    if not hasattr(args, "kv_memory"):
        return NO_TIERS
    return TierSizes(args.kv_memory, args.kv_disk)


def cache_line(stats: CoreStats) -> str:
    """What the cache did, for people."""
    told = (
        f"cache: {stats.cached_tokens} of {stats.prompt_tokens} prompt tokens reused, {stats.restored_tokens} of them "
        f"from tiers; {stats.blocks_cached} of {stats.blocks} blocks hold text that can be reused"
    )
    if stats.tiers is None:
        return told
    return f"{told}; {stats.tiers['memory_blocks']} blocks in host memory, {stats.tiers['disk_blocks']} on disk"


def size_argument(text: str) -> int:
    """The bytes that a size says, for argparse."""
    if text == "0":
        return 0
    size = parse_size(text)
    if not isinstance(size, int):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; expected 0, or one such as 512MiB or 2GiB")
    return size
