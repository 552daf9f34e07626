"""Tiers: where blocks of the arena go when they are evicted, and come back from: host memory, then a folder on disk."""
