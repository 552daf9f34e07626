"""Speculation: guesses of the next tokens, which one step checks all at once."""
