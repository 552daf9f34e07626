"""The heartbeat of a rank: a thread that tells its peers that it lives, and notices when one of them does not.

It has sockets of its own, so neither steps nor large messages delay it. A step in C and a collective release the GIL,
so the thread runs while they do. A peer that exits ends its connection, which shows at once; one that is stopped, or
whose machine is gone, says nothing for `LOST_SECONDS`.
"""

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import IntEnum

BEAT_SECONDS = 1.0
"""Time between two beats."""
LOST_SECONDS = 4.0
"""Silence after which a peer is lost."""
_LOOK_SECONDS = 0.2
_HEADER = struct.Struct("<BH")
_MOST_TEXT_BYTES = 4096
PARENT_VARIABLE = "MLXR_RANK_PARENT"
"""The id of the process that starts this one again when it ends; this one ends when that has gone."""


class _Word(IntEnum):
    BEAT = 0
    END = 1
    LOST = 2


class _Peer:
    """What is known of a peer."""

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.link = link
        self.pending = b""
        self.heard = time.monotonic()

    def say(self, word: _Word, text: str = "") -> None:
        """Sends a word, if it can be sent at once: the buffer of a peer that is stopped may be full."""
        data = text.encode(errors="replace")[:_MOST_TEXT_BYTES]
        with suppress(OSError):
            self.link.send(_HEADER.pack(word, len(data)) + data)

    def words(self) -> list[tuple[int, str]] | None:
        """What has come from it; None: it has ended the connection, or sent nonsense."""
        try:
            data = self.link.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        self.heard = time.monotonic()
        self.pending += data
        words = []
        while len(self.pending) >= _HEADER.size:
            word, size = _HEADER.unpack_from(self.pending)
            if size > _MOST_TEXT_BYTES or word > max(_Word):
                return None
            if len(self.pending) < _HEADER.size + size:
                break
            words.append((word, self.pending[_HEADER.size : _HEADER.size + size].decode(errors="replace")))
            self.pending = self.pending[_HEADER.size + size :]
        return words


class Heartbeat:
    """Watches the peers of a rank until one is lost, or until it is told that all is over."""

    def __init__(
        self,
        links: Mapping[int, socket.socket],
        lost: Callable[[int, str], None],
        ended: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Starts the thread.

        Args:
            links: connected sockets, by the peers' ranks; they belong to this object from now on.
            lost: called in the thread, at most once, with a rank and the reason: it is lost, or it reports that another
                one is; the rank is -1 if this process's own parent is lost.
            ended: called in the thread when a peer says that it ends as it should, with the reason, if there is one; it
                is not watched any more.
        """
        self._peers = {rank: _Peer(link) for rank, link in links.items()}
        self._lost, self._ended = lost, ended
        self._stopping = False
        parent = os.environ.get(PARENT_VARIABLE, "")
        self._parent = int(parent) if parent.isdecimal() else None
        self._thread = threading.Thread(target=self._run, name="mlxr-heartbeat", daemon=True)
        self._thread.start()

    def report(self, text: str, but: int | None = None) -> None:
        """Tells the peers that the group is broken, and why.

        Args:
            text: why.
            but: a peer that is not told.
        """
        for rank, peer in list(self._peers.items()):
            if rank != but:
                peer.say(_Word.LOST, text)

    def end(self, reason: str = "") -> None:
        """Tells the peers that this rank ends as it should, and why; stops watching them."""
        self._stopping = True
        for peer in list(self._peers.values()):
            peer.say(_Word.END, reason)
        if self._thread is not threading.current_thread():
            self._thread.join(5 * _LOOK_SECONDS)

    def _run(self) -> None:
        poll, ranks, next_beat = select.poll(), {}, 0.0
        for rank, peer in self._peers.items():
            ranks[peer.link.fileno()] = rank
            poll.register(peer.link, select.POLLIN)
        while not self._stopping:
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + BEAT_SECONDS
                for peer in self._peers.values():
                    peer.say(_Word.BEAT)
            # What has come is read before anyone is taken for lost: this process may have been stopped itself.
            for file, _ in poll.poll(1000 * _LOOK_SECONDS):
                rank = ranks[file]
                reason, end = self._news(self._peers[rank])
                if self._stopping:
                    return
                if reason is not None:
                    self._lost(rank, reason)
                    return
                if end is not None:
                    poll.unregister(file)
                    del self._peers[rank]
                    self._ended(end)
            now = time.monotonic()
            for rank, peer in self._peers.items():
                if now - peer.heard > LOST_SECONDS:
                    self._lost(rank, f"it has not answered for {LOST_SECONDS:g} s")
                    return
            if self._parent is not None and os.getppid() != self._parent:
                self._lost(-1, "the process that starts this one again has ended")
                return

    @staticmethod
    def _news(peer: _Peer) -> tuple[str | None, str | None]:
        """Takes what a peer has sent: why it is lost, if it is, and why it ends, if it does so as it should."""
        words = peer.words()
        if words is None:
            return "it has ended, or its connection has", None
        for word, text in words:
            if word == _Word.LOST:
                return text, None
            if word == _Word.END:
                return None, text
        return None, None
