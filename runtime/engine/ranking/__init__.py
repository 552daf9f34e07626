"""Ranks documents by how well they answer a query."""
