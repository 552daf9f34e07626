"""Several iterators as one, in the order in which their items come."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

_T = TypeVar("_T")


async def merged(iterators: Sequence[AsyncGenerator[_T]]) -> AsyncGenerator[tuple[int, _T]]:
    """Each item with the number of the iterator that it comes from. Closing it closes them all.

    Raises:
        Whatever one of them raises; the others are closed then.
    """
    if len(iterators) == 1:
        try:
            async for only in iterators[0]:
                yield 0, only
        finally:
            await iterators[0].aclose()
        return
    items: asyncio.Queue[tuple[int, _T] | BaseException | None] = asyncio.Queue()

    async def read(number: int, iterator: AsyncGenerator[_T]) -> None:
        try:
            async for item in iterator:
                items.put_nowait((number, item))
        except Exception as error:
            items.put_nowait(error)
        finally:
            await iterator.aclose()
            items.put_nowait(None)

    tasks = [asyncio.create_task(read(number, iterator)) for number, iterator in enumerate(iterators)]
    try:
        left = len(tasks)
        while left:
            item = await items.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
