"""Targets: what the compiler generates code for."""
