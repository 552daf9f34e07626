"""Which running requests compute which blocks of their prompts, so that requests with the same prompt wait for them."""

from collections.abc import Hashable, Sequence

from mlxr.runtime.cache.block_hashes import Digest
from mlxr.runtime.engine.request import Request


class PromptsBeingRead:
    """Blocks of prompts by key, each with the request that computes it. The scheduler alone changes it.

    It writes `RunState.unread` of requests.
    """

    def __init__(self, block_size: int) -> None:
        """Begins with none; `block_size`: tokens of a block."""
        self._size = block_size
        self._requests: dict[Hashable, Request] = {}
        self._new: list[Request] = []  # which have begun, and whose blocks are not known here yet

    @property
    def requests(self) -> set[Request]:
        """Those that compute blocks."""
        self.take_new()
        return {*self._requests.values()}

    def __bool__(self) -> bool:
        """Whether any block is being computed."""
        return bool(self._requests or self._new)

    def __contains__(self, key: Hashable) -> bool:
        """Whether a block is being computed."""
        if self._new:
            self.take_new()
        return key in self._requests

    def begin(self, request: Request) -> None:
        """A request has got a sequence. Its blocks are noted by `take_new`, or when somebody asks for one."""
        self._new.append(request)

    def take_new(self) -> None:
        """Notes the blocks of requests that have begun; called when their step is launched: first the device gets work.

        Nobody asks for them before unless other requests wait.
        """
        while self._new:
            request = self._new[-1]
            if request.run.seq_id is not None and not request.run.unread:
                self._note(request)
            self._new.pop()  # last: Ctrl-C may come in between

    def _note(self, request: Request) -> None:
        size, tokens, run = self._size, request.answer.tokens, request.run
        digests = request.hashes.of(tokens, len(tokens))
        first = run.certain // size
        ends = range((first + 1) * size, len(tokens) + 1, size)
        unread: list[tuple[int, Hashable]] = [*zip(ends, digests[first:], strict=True)]
        if len(tokens) % size:
            unread.append((len(tokens), _tail_key(digests, tokens, size)))
        run.unread = [(end, key) for end, key in reversed(unread) if key not in self._requests]
        self._requests.update(dict.fromkeys([key for _, key in run.unread], request))

    def key_after(self, request: Request, computed: int) -> Hashable:
        """The key of the block that a request would compute first, if so many of its tokens are computed."""
        size, tokens = self._size, request.answer.tokens
        block = computed // size
        if (block + 1) * size <= len(tokens):
            return request.hashes.of(tokens, (block + 1) * size)[block]
        return _tail_key(request.hashes.of(tokens, len(tokens)), tokens, size)

    def has_computed(self, request: Request) -> None:
        """Lets the requests go on that waited for the blocks which this one has computed by now."""
        unread = request.run.unread
        if unread and unread[0][0] <= request.run.certain:
            self.end(request)
        while unread and unread[-1][0] <= request.run.certain:
            self._drop(request, unread[-1][1])
            unread.pop()  # last: Ctrl-C may come in between

    def end(self, request: Request) -> None:
        """A request computes no more blocks of its prompt."""
        unread = request.run.unread
        for _, key in unread:
            self._drop(request, key)
        unread.clear()

    def _drop(self, request: Request, key: Hashable) -> None:
        if self._requests.get(key) is request:
            del self._requests[key]


def _tail_key(digests: Sequence[Digest], tokens: Sequence[int], size: int) -> Hashable:
    """The key of the tokens after the last full block."""
    return (digests[-1] if digests else b"", *tokens[len(digests) * size :])
