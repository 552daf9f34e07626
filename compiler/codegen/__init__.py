"""Kernel contexts and their rendering: Python computes, templates choose."""
