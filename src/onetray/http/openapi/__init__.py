"""The description of the API, and the page at /docs that shows it."""
