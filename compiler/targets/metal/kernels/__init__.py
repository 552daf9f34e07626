"""Kernel contexts: Python computes, templates choose."""
