"""The life of a server: how it starts, is found, and ends."""
