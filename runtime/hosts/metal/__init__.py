"""Host metal."""
