"""Limits on clients: connections, time, bytes, requests per second."""
