"""Graph passes, one a file, and the ordered list that runs them."""
