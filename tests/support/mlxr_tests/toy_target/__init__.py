"""A third target, as small as one can be: it writes NumPy functions. Tests register it in the registry of targets."""
