"""A third target, as small as possible: it writes NumPy functions. Tests add it to the registry of targets."""
