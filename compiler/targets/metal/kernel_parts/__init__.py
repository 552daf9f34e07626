"""Parts that several Metal kernels share: bases of their contexts, and facts about their ops."""
