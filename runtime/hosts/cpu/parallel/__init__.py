"""A program of one rank of several: what it exchanges with the others, and when a batch is cut for that."""
