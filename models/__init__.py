"""Specs, families and the bundled model, as package data."""
