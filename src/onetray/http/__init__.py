"""The server: the native API, live streams, and what guards them. See docs/http.md."""
