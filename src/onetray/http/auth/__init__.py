"""Who calls, and whether they may: hosts, tokens, scopes."""
