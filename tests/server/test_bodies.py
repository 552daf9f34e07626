"""Bodies that are slow, long or many, as the server reads them."""

import asyncio
from typing import Any

import pytest

from mlxr.server.bodies import Bodies
from mlxr.server.errors import ApiError

POST = {"type": "http", "method": "POST", "headers": []}
PIECE = b"x" * 1000


class Client:
    """What a client sends, piece by piece, when the test says so."""

    def __init__(self, bodies: Bodies, **scope: Any) -> None:
        self.pieces: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.task = asyncio.ensure_future(self._read(bodies, POST | scope))

    async def _read(self, bodies: Bodies, scope: dict[str, Any]) -> bytes:
        receive = await bodies.read(scope, self.pieces.get)  # type: ignore[arg-type]
        message = await receive()
        assert not message["more_body"]
        return bytes(message["body"])

    async def send(self, piece: bytes, more: bool = True) -> None:
        self.pieces.put_nowait({"type": "http.request", "body": piece, "more_body": more})
        for _ in range(5):
            await asyncio.sleep(0)

    async def refusal(self) -> tuple[int, str | None]:
        with pytest.raises(ApiError) as refused:
            await asyncio.wait_for(self.task, 30)
        assert refused.value.status == 499 or refused.value.headers["Connection"] == "close"
        return refused.value.status, refused.value.code


def test_a_body_comes_whole_and_then_whatever_follows() -> None:
    async def run() -> None:
        bodies = Bodies(10_000, 100_000, 60)
        client = Client(bodies)
        for _ in range(9):
            await client.send(PIECE)
        assert bodies.unfinished_bytes == 9000 and not client.task.done()
        await client.send(b"end", more=False)
        assert await client.task == 9 * PIECE + b"end"
        assert bodies.unfinished_bytes == 0
        one = Client(bodies)
        await one.send(b"{}", more=False)
        assert await one.task == b"{}"

    asyncio.run(run())


def test_a_slow_body_has_an_end() -> None:
    async def run() -> None:
        bodies = Bodies(10_000, 100_000, 0.05)
        slow, silent = Client(bodies), Client(bodies)
        await slow.send(b"x")
        assert await slow.refusal() == await silent.refusal() == (408, "body_too_slow")
        assert bodies.unfinished_bytes == 0

    asyncio.run(run())


def test_a_long_body_gets_more_time() -> None:
    """As long as it keeps coming: the time that is left grows with what has come."""

    async def run() -> None:
        bodies = Bodies(10 << 20, 100 << 20, 0.02)
        client = Client(bodies)
        await client.send(b"x" * (1 << 20))
        await asyncio.sleep(0.1)
        await client.send(b"end", more=False)
        assert len(await client.task) == (1 << 20) + 3

    asyncio.run(run())


def test_all_unfinished_bodies_have_a_limit_and_the_first_one_goes() -> None:
    async def run() -> None:
        bodies = Bodies(10_000, 25_000, 60)
        held = [Client(bodies) for _ in range(50)]
        for client in held:
            for _ in range(9):
                await client.send(PIECE)
            assert bodies.unfinished_bytes <= 25_000
        for client in held[:48]:
            assert await client.refusal() == (503, "too_many_bodies")
        for client in held[48:]:
            await client.send(b"", more=False)
            assert await client.task == 9 * PIECE
        assert bodies.unfinished_bytes == 0

    asyncio.run(run())


def test_bodies_that_are_too_long_or_end_early() -> None:
    async def run() -> None:
        bodies = Bodies(10_000, 100_000, 60)
        assert await Client(bodies, headers=[(b"content-length", b"10001")]).refusal() == (413, "too_large")
        one, many, gone = Client(bodies), Client(bodies), Client(bodies)
        await one.send(b"x" * 10_001, more=False)
        for _ in range(11):
            await many.send(PIECE)
        assert await one.refusal() == await many.refusal() == (413, "too_large")
        await gone.send(PIECE)
        gone.pieces.put_nowait({"type": "http.disconnect"})
        assert (await gone.refusal())[0] == 499
        assert bodies.unfinished_bytes == 0

    asyncio.run(run())
