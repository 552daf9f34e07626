"""Which sentence is nearest to a question? python examples/embeddings.py [MODEL]."""

import sys

import mlxr

MODEL = sys.argv[1] if len(sys.argv) > 1 else "storyteller"
SENTENCES = [
    "The king gave his daughter to the youngest son.",
    "The ship sailed over the sea for seven days.",
    "The fox ate the hen in the night.",
]
QUESTION = "Who sailed over the sea in a ship?"

# With output="hidden" a model gives rows in place of logits; vectors have length 1, so products are cosines.
with mlxr.load(MODEL, changes=mlxr.Changes(output="hidden")) as model:
    vectors = model.embed([QUESTION, *SENTENCES], pooling="mean")
for cosine, sentence in sorted(zip(vectors[1:] @ vectors[0], SENTENCES, strict=True), reverse=True):
    print(f"{cosine:.3f}  {sentence}")
