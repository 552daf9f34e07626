"""Target cpu: the whole model as one C program."""
