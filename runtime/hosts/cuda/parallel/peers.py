"""The other cards of a stage, once it is known whether they see each other's memory."""

from collections.abc import Callable

import mlx.core as mx

from mlxr.compiler.artifact import mailbox_bytes
from mlxr.runtime.hosts.cuda.parallel.meet_peers import NoPeersError, meet_peers
from mlxr.runtime.hosts.cuda.parallel.peer_exchange import PeerExchange
from mlxr.runtime.hosts.cuda.parallel.peer_sums import PeerSums
from mlxr.runtime.hosts.exchange import Exchange


class Peers:
    """What a part of a model sums through. The processes meet in the first step, when a heartbeat watches all of them.

    Attributes:
        unmet: what the host was given, until it has met the others.
        exchange: the same with sums through the cards' memory; None: they do not see each other's.
        memories: the addresses, for kernels; None: as above.
        note: a message for people about sums that go another way; empty: none.
    """

    def __init__(self) -> None:
        """Meets nobody yet."""
        self.unmet: Exchange | None = None
        self.exchange: PeerExchange | None = None
        self.memories: mx.array | None = None
        self.note = ""

    def meet(self, count: Callable[[str, object], None]) -> Exchange | None:
        """Meets the others.

        Args:
            count: called at each launch of a sum with the kernel's name and a detail.

        Returns:
            What the host was given; None: there are no others whose cards might see this one's memory, or they do not.
        """
        given, self.unmet = self.unmet, None
        if given is None or given.size == 1 or given.is_line:
            return None
        try:
            memories = meet_peers(given.all_sum, given.index, given.size, mailbox_bytes(given.size))
        except NoPeersError as error:
            self.note = f"sums go through MLX, which is slower than the cards' memory: {error}"
            return None
        sums = PeerSums(given.index, memories)
        self.memories, self.exchange = sums.memories, PeerExchange(given, sums, count)
        return given

    def begin(self) -> None:
        """Begins a step, a part of one, or a trace."""
        if self.exchange is not None:
            self.exchange.begin()
