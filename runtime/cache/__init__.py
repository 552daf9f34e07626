"""The KV cache: the arena, its blocks, the pager that gives them to sequences, and the prefix cache."""
