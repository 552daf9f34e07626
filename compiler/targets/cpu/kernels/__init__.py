"""The C kernels, one per file: a context and its lowering rule."""
