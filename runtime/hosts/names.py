"""The hosts by name, for who must know them before MLX is loaded."""

HOSTS = ("metal", "sim", "reference")
HOST_NAMES = ("auto", *HOSTS)
