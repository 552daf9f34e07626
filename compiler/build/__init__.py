"""Builds the source graph of a spec."""
