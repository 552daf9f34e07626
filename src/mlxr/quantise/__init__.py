"""Quantises models and converts their files: GGUF and mlx-lm's folders."""
