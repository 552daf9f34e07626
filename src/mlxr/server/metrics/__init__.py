"""What the server counts and measures, for Prometheus at /metrics."""
