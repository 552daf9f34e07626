"""Launches, buffers, launch geometry and memory of a program."""
