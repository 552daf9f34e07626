"""What the hosts share whose kernels MLX launches."""
