"""The routes of the native API at /api/v1, one module for each thing they are about."""
