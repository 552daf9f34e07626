"""Launches, buffers and weights of an artifact, and the memory they need."""
