"""Print the states and transitions of a dialect beside ours, as Markdown.

    python tools/dialect_tables.py so1

`./go docs` writes it to docs/dialects.md. The tables are those that the dialect's code and its tests use.
"""

import sys

from onetray.http.dialects import load_dialect
from onetray.mcp.parallel.words import RUN_STATES, TASK_STATES


def main(name: str) -> None:
    for table in (RUN_STATES, TASK_STATES) if name == "parallel-mcp" else load_dialect(name).states:
        print(f"#### A {table.entity} as a {table.shown_as}\n")
        print("\n".join(table.markdown()), end="\n\n")


if __name__ == "__main__":
    main(sys.argv[1])
