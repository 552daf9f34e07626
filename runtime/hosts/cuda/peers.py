"""The other ranks of a stage, once it is known whether their cards see each other's memory."""

from collections.abc import Callable

import mlx.core as mx

from mlxr.compiler.artifact import RankPlan, mailbox_bytes
from mlxr.runtime.hosts.collectives import Collectives
from mlxr.runtime.hosts.cuda.meet_peers import NoPeersError, meet_peers
from mlxr.runtime.hosts.cuda.peer_collectives import PeerCollectives
from mlxr.runtime.hosts.cuda.peer_sums import PeerSums


class Peers:
    """What a rank sums through. The ranks meet in the first step, when a heartbeat watches all of them.

    Attributes:
        unmet: the rank's own collectives, until it has met the others.
        collectives: whose sums go through the cards' memory; None: they do not.
        memories: the addresses, for kernels; None: as above.
        note: a message for people about sums that go another way; empty: none.
    """

    def __init__(self, place: RankPlan | None) -> None:
        """Meets nobody yet.

        Args:
            place: of this process; None: it has the whole model.
        """
        self._place = place
        self.unmet: Collectives | None = None
        self.collectives: PeerCollectives | None = None
        self.memories: mx.array | None = None
        self.note = ""

    def meet(self, count: Callable[[str, object], None]) -> tuple[Collectives, int] | None:
        """Meets the others.

        Args:
            count: called at each launch of a sum with the kernel's name and a detail.

        Returns:
            Their collectives and number; None: there are no others whose cards might see this one's memory, or they
            do not.
        """
        collectives, place, self.unmet = self.unmet, self._place, None
        if collectives is None or place is None or place.tensor == 1 or place.pipeline > 1:
            return None
        try:
            memories = meet_peers(collectives.all_sum, place.tensor_rank, place.tensor, mailbox_bytes(place.tensor))
        except NoPeersError as error:
            self.note = f"sums go through MLX, which is slower than the cards' memory: {error}"
            return None
        sums = PeerSums(place.tensor_rank, memories)
        self.memories, self.collectives = sums.memories, PeerCollectives(collectives, sums, count)
        return collectives, place.tensor

    def begin(self) -> None:
        """Begins a step, a part of one, or a trace."""
        if self.collectives is not None:
            self.collectives.begin()
