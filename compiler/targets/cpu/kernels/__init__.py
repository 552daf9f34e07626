"""Contexts of the C functions."""
