"""Writes text: all at once, and as it comes. python examples/generate.py [MODEL]."""

import sys

import mlxr

MODEL = sys.argv[1] if len(sys.argv) > 1 else "storyteller"

with mlxr.load(MODEL) as model:
    # Greedy: the most probable token each time.
    print(model.generate("There was once a", max_tokens=4).text)

    # As the model's own files say, with a seed, so that it comes out alike each time.
    sampling = mlxr.Sampling.of_model(seed=7, max_tokens=40)
    for event in model.stream("The fox said", sampling=sampling):
        print(event.text, end="", flush=True)
        if event.finish_reason:
            print(f"\n[{event.finish_reason} after {len(event.completion.token_ids)} tokens]")
