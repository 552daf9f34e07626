"""Ranks whose cards see each other's memory: how they find out, and their sums."""
