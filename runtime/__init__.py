"""Executes an artifact: arena, weights, tokenizer, hosts, generation. Sees the compiler only through the artifact."""
