"""Request bodies as strict pydantic models: an unknown field is an error that names it.

Commands check limits and combinations of fields themselves: see domain/commands.py.
"""
