"""Conversations as every API has them: messages and tools in; reasoning, text and tool calls out.

Nothing in it knows an API. A `ChatFormat`, one for each model, knows how the model's family writes all this.
"""
