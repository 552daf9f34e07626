"""The page at `/`: static files that a browser runs as they are. static/README.md says what is where."""
