"""The routes of the native API at /api/v1, one module per resource."""
