"""Text for people: counts with their nouns, and sizes."""
