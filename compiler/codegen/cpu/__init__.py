"""Contexts of the C templates, and the translation unit made of them."""
