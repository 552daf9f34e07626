"""Words for people: numbers of things, and sizes."""
