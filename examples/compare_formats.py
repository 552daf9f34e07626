"""How far are the logits of two formats apart? python examples/compare_formats.py [MODEL OTHER]."""

import sys

import numpy as np

import mlxr

MODELS = sys.argv[1:3] or ["storyteller", "tests/data/storyteller/storyteller-q4_k_m.gguf"]
TEXT = "Once upon a time there was a king who had three daughters."

logits = []
for name in MODELS:
    with mlxr.load(name, changes=mlxr.Changes(compute="exact")) as model:
        logits.append(model.logits(model.encode(TEXT)))
first, second = logits
print(f"{first.shape[0]} tokens; greatest difference of a logit: {np.abs(first - second).max():.2f}")
print(f"the same most probable token after {np.mean(first.argmax(1) == second.argmax(1)):.0%} of them")
