"""Print the states and transitions of a dialect beside ours, as Markdown.

    python tools/dialect_tables.py so1

`./go docs` writes it to docs/dialects.md. The tables are those that the dialect's code and its tests use.
"""

import sys

from onetray.http.dialects import load_dialect


def main() -> None:
    for table in load_dialect(sys.argv[1]).states:
        print(f"#### A {table.entity} as a {table.shown_as}\n")
        print("\n".join(table.markdown()), end="\n\n")


if __name__ == "__main__":
    main()
