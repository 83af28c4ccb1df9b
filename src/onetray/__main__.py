"""`python -m onetray`: the same as the command `onetray`."""

from onetray.cli import main

main()
