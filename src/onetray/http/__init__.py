"""The HTTP server: the native API, live streams, authentication and limits. See docs/http.md."""
