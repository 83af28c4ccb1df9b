"""Authentication and authorization: hosts, tokens, scopes."""
