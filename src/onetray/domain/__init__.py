"""What onetray is about: lifecycles, values, commands and their checks. Pure: no SQL, no I/O, no threads."""
