"""What requests may say: strict models, one for each body. A field that is not known is refused by its name.

Own the shape of what comes in. Limits and what fits together are the commands' own: see domain/commands.py.
"""
