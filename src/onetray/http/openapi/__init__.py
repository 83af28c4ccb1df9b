"""The OpenAPI description, and the page at /docs."""
