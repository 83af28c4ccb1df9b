"""Programs to read and to run: each is one file."""
