"""MLXR and its peers on one GPU: random weights made there, checks of what is measured, and the table."""
