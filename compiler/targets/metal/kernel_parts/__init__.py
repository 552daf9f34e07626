"""Parts that several Metal kernels share: the bases of their contexts, and what lowering knows of their ops."""
