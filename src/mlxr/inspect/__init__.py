"""Shows what an artifact holds: launch tables, JSON, highlighted kernels and pictures of the op graph."""
