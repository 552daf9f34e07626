"""A loaded model, and all that generates text with it."""
