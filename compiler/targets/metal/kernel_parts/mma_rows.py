"""The shape of the matrix instructions of prefill attention and of projections of one row."""

MMA_ROWS = 16
"""Rows of its first factor: of a weight, or of query heads."""
