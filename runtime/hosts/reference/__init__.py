"""Host reference."""
