"""The KV cache: arena, pager, blocks, and prefixes that are kept."""
