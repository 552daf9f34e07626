"""Targets: the languages and machines that the compiler generates code for."""
