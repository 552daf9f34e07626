"""A conversation of two turns, of which the second computes only what is new. python examples/chat.py [MODEL]."""

import sys

import mlxr

MODEL = sys.argv[1] if len(sys.argv) > 1 else "storyteller"

with mlxr.load(MODEL) as model, model.chat_template() as template:
    talk = mlxr.Conversation(model, template)
    for question in ("Who lives in the forest?", "And what did they eat?"):
        print(f"> {question}")
        for piece in talk.ask(question, max_tokens=30):
            print(piece, end="", flush=True)
        print()
    print(f"[{len(talk.messages)} messages]")
