"""What an artifact holds, shown to people: launch tables, JSON, highlighted kernels and pictures of the op graph."""
