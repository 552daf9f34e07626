"""Parts that several C kernels share: base classes of their contexts, and parts of the C program."""
