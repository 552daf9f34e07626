"""The hosts by name, for who must know them before MLX is loaded."""

HOSTS = ("metal", "cuda", "cpu", "sim", "reference")
HOST_NAMES = ("auto", *HOSTS)
