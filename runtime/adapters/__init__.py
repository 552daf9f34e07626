"""Low-rank adapters (LoRA) in files: of PEFT, of mlx-lm, and GGUF."""
