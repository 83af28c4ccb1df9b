"""The MCP server: agents submit, find, claim and report jobs by tools, over stdio and at /mcp of the HTTP server.

    request ─▶ route.py or stdio.py ─▶ dispatch.py ─▶ a tool of a tool set (registry.py) ─▶ the engine

The SDK is imported only when it is needed: server.py, by the first request that short_path.py cannot answer.
"""
