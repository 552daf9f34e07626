"""Specs, weight-name maps and the bundled model, as package data."""
