"""Leave what is imported by now to the garbage collector no more: the last module that the fork server imports.

A server collects garbage when it starts. In a forked process that writes to every object of every module: 100 ms, and
a copy of all their memory.
"""

import gc

gc.collect()
gc.freeze()
