"""Which words did the model think of? python examples/log_probabilities.py [MODEL]."""

import math
import sys

import mlxr

MODEL = sys.argv[1] if len(sys.argv) > 1 else "storyteller"

with mlxr.load(MODEL) as model:
    tokenizer = model.require_tokenizer()
    for event in model.stream("There was once a", sampling=mlxr.Sampling(max_tokens=4, logprobs=3)):
        assert event.logprob is not None
        others = (f"{tokenizer.decode([token])!r} {math.exp(logprob):.0%}" for token, logprob in event.logprob.top)
        print(f"{event.text!r}: {', '.join(others)}")
