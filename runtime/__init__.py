"""Runs an artifact: weights, tokenizer, KV cache, hosts and generation. Knows the compiler only by its artifact."""
