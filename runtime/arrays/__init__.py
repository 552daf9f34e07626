"""Arrays, as several packages of the runtime need them: MLX's as NumPy's, and the greatest numbers of rows."""
