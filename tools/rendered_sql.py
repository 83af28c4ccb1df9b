"""Print every statement as it is sent to a database, with its name and the type of its rows.

    python tools/rendered_sql.py postgres

`./go docs` writes it to docs/sql/. Parameters are written as psql and sqlite3 take them, `:name`. Where a whole batch
has one value for a column, the engine sends a parameter in the place of that column: such variants are left out.
"""

import re
import sys
from collections.abc import Iterator

from onetray.store.fast_claim_postgres import CLAIM_ONE
from onetray.store.fast_submit_postgres import SUBMIT_ONE, SUBMIT_SEVERAL
from onetray.store.full_claim_sql import CLAIM_FULL
from onetray.store.row_types import ROW_TYPES, field_names
from onetray.store.sql_template import POSTGRES, SQLITE, Statement, sections_of
from onetray.store.statements import statements_for

HOW_TO = {
    POSTGRES: "In psql: \\set key 7, and \\set keys '''{1,2}''' for a list.",
    SQLITE: "In sqlite3: .parameter set :keys '[1,2]'. Lists and batches are JSON.",
}


def statements(dialect: str) -> Iterator[str]:
    known = statements_for(dialect)
    for name, statement in known.by_name.items():
        yield entry(f"name: {name}", statement, row_line(name))
    for name, move in known.moves.items():
        yield entry(f"move: {name}", move)
    if dialect == POSTGRES:
        for statement in (SUBMIT_ONE, SUBMIT_SEVERAL, CLAIM_ONE, CLAIM_FULL):
            yield entry(f"name: {statement.name}", statement)


def row_line(name: str) -> str:
    declared = re.search(r"^-- row: (\w+)$", sections_of("name")[name].comment, re.MULTILINE)
    return f"-- row: {declared[1]}({', '.join(field_names(ROW_TYPES[declared[1]]))})\n" if declared else ""


def entry(title: str, statement: Statement, row: str = "") -> str:
    # A word that means nothing on this database leaves a blank.
    sql = re.sub(r" +$", "", re.sub(r"%\((\w+)\)s", r":\1", statement.sql), flags=re.MULTILINE)
    return f"-- {title}\n{row}{sql};\n"


def main() -> None:
    dialect = sys.argv[1]
    print(f"-- Every statement, as {dialect} gets it. {HOW_TO[dialect]}\n")
    print("\n".join(statements(dialect)))


if __name__ == "__main__":
    main()
