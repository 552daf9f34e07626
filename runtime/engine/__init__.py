"""A loaded model, and what generates with it."""
