"""Eight requests at once, which share a long beginning. python examples/many_requests.py [MODEL]."""

import asyncio
import sys

import mlxr

MODEL = sys.argv[1] if len(sys.argv) > 1 else "storyteller"
BEGINNING = "Once upon a time there was a king who had three daughters, and the youngest was as fair as the sun. " * 3
ENDS = ("One day", "In the night", "Her sisters", "The king", "A fox", "A wolf", "The miller", "An old woman")


async def ask(engine: mlxr.Engine, end: str) -> int:
    """Prints how one tale goes on; returns how many tokens of its prompt were not computed."""
    sampling, text, cached = mlxr.Sampling(temperature=0.8, seed=1, max_tokens=12), "", 0
    async for event in engine.generate(BEGINNING + end, sampling):
        text, cached = text + event.text, event.cached_tokens
    print(f"{end}{text}")
    return cached


async def main() -> None:
    """Asks for one tale, and then for the others together."""
    with mlxr.Engine(MODEL, max_sequences=8) as engine:
        first = await ask(engine, ENDS[0])
        others = await asyncio.gather(*(ask(engine, end) for end in ENDS[1:]))
        print(f"[cached tokens: {first} for the first one, {min(others)} or more for each of the others]")


asyncio.run(main())
