"""Lifecycles, public values, commands and their checks. Pure: no SQL, no I/O, no threads."""
