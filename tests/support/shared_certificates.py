"""One TLS context for all clients of httpx2 in a test process.

A client reads the certificates of all authorities, whether or not it ever connects to a server with TLS. That takes
20 ms, as much as a dozen requests of a test, and some tests make a client for each request.
"""

from __future__ import annotations

from functools import cache

from httpx2._transports import default


def read_certificates_once() -> None:
    default.create_ssl_context = cache(default.create_ssl_context)
