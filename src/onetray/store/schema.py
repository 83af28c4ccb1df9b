"""Migrations: numbered texts that upgrade a database to this version of the schema. One text for both databases.

Owns how a migration is rendered. A released migration never changes: a test compares the hash of each rendered text.
It is PostgreSQL's SQL, except for

    {strict} {without_rowid} {fillfactor:n} {vacuumed_early}    how rows are stored
    -- only: sqlite           the paragraph that follows is for one database
"""

from __future__ import annotations

import re
import threading
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from onetray.domain.errors import MigrationNeeded
from onetray.store.sql_template import POSTGRES, SQLITE, Word, fill

if TYPE_CHECKING:
    import apsw

MIGRATION_LOCK = 7_136_211_505
"""Of PostgreSQL: whoever migrates a database holds it."""
_copying = threading.Lock()
FIRST = 6
"""The first version that can be upgraded. Earlier ones were never released."""
_ON_SQLITE = (
    (r" GENERATED ALWAYS AS IDENTITY| DEFAULT nextval\('[\w.]+'\)", ""),
    (r"\b(bigint|integer)\b", "INTEGER"),
    (r"\b(text|uuid)\b", "TEXT"),
    (r"\bdouble precision\b", "REAL"),
    (r"\bonetray\.", ""),
)
_WORDS: dict[str, dict[str, Word]] = {
    SQLITE: {"strict": "STRICT", "without_rowid": "WITHOUT ROWID, STRICT", "fillfactor": "", "vacuumed_early": ""},
    POSTGRES: {
        "strict": "",
        "without_rowid": "",
        "fillfactor": lambda percent: f"WITH (fillfactor = {percent})",
        "vacuumed_early": "WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000)",
    },
}


@cache
def migrations() -> tuple[int, ...]:
    """The numbers of all migrations, in order."""
    folder = files("onetray.store").joinpath("migrations")
    return tuple(sorted(int(path.name[:4]) for path in folder.iterdir() if path.name.endswith(".sql")))


def newer_migrations(version: int) -> list[int]:
    """Those that a database of this version lacks. Each of the others would take a transaction to find that out."""
    return [number for number in migrations() if number > version]


def migration(dialect: str, number: int) -> str:
    """The SQL of a migration for one database."""
    text = files("onetray.store").joinpath("migrations", f"{number:04d}.sql").read_text()
    other = f"-- only: {POSTGRES if dialect == SQLITE else SQLITE}\n"
    text = "\n\n".join(part for part in text.split("\n\n") if not part.startswith(other))
    if dialect == SQLITE:
        for pattern, replacement in _ON_SQLITE:
            text = re.sub(pattern, replacement, text)
    return fill(text, _WORDS[dialect])


def copy_migrated(connection: apsw.Connection) -> None:
    """Turn an empty SQLite database into one of the current version. Only for one that no other process can open.

    Programs have many in memory, one for each test: a copy takes a tenth of the time of all migrations.
    """
    with _copying, connection.backup("main", _migrated(), "main") as backup:
        while not backup.done:
            backup.step(-1)


@cache
def _migrated() -> apsw.Connection:
    import apsw

    connection = apsw.Connection(":memory:")
    for number in migrations():
        connection.execute(migration(SQLITE, number))
        connection.execute(f"PRAGMA user_version = {number}")
    return connection


def known_version(number: int) -> int:
    """Returns the version. Raises MigrationNeeded if no migration starts from it."""
    if 0 < number < FIRST:
        raise MigrationNeeded(
            f"the schema is at version {number}, which is older than any release and cannot be upgraded: "
            f"use a new database, or upgrade this one to version {FIRST} with the onetray that created it",
            have=number,
            want=migrations()[-1],
        )
    return number
