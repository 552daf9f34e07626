"""The memory that GPUs share to sum over ranks: its layout, on which kernels and the host that allocates it agree.

It begins with a u32 for each block. Then come mailboxes: for each of two turns, each rank and each block.
"""

BLOCKS = 32
"""The most blocks of a sum."""
BOX_WORDS = 2048
"""Words of a mailbox. A word has 16 bytes, 8 of them numbers."""
LONGEST_BYTES = 4 << 20
"""The longest sum where there is NCCL, which does longer ones: it reached 237 GB/s between two H200."""
TIMEOUT_S = 300
"""How long a kernel waits for another rank: the heartbeat ends a process sooner if that rank is lost."""


def mailbox_bytes(ranks: int) -> int:
    """How much memory each rank shares with the others."""
    return 4 * BLOCKS + 2 * ranks * BLOCKS * BOX_WORDS * 16


def mailbox_macros(rank: int, ranks: int, threads: int) -> dict[str, object]:
    """What templates/hosts/peer_sum_on_cuda.cuh needs to know besides the numbers' type.

    Args:
        rank: the rank whose kernel it is.
        ranks: how many ranks take part.
        threads: threads of a block.
    """
    macros: dict[str, object] = {"RANK": rank, "RANKS": ranks, "THREADS": threads, "BLOCKS": BLOCKS}
    return macros | {"BOX_WORDS": BOX_WORDS, "WORDS": 4, "TIMEOUT_NS": f"{TIMEOUT_S * 10**9}ull"}
