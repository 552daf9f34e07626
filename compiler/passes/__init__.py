"""Graph passes, one per file, and the ordered list that runs them."""
