"""Migrations: numbered texts that upgrade a database to this version of the schema. One text for both databases.

Owns how a migration is rendered. A released migration never changes: a test compares the hash of each rendered text.
It is PostgreSQL's SQL, except for

    {strict} {without_rowid} {fillfactor:n} {vacuumed_early}    how rows are stored
    -- only: sqlite           the paragraph that follows is for one database
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from onetray.domain.errors import MigrationNeeded
from onetray.store.sql_template import POSTGRES, SQLITE, Word, fill

MIGRATION_LOCK = 7_136_211_505
"""Of PostgreSQL: whoever migrates a database holds it."""
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


def migration(dialect: str, number: int) -> str:
    """The SQL of a migration for one database."""
    text = files("onetray.store").joinpath("migrations", f"{number:04d}.sql").read_text()
    other = f"-- only: {POSTGRES if dialect == SQLITE else SQLITE}\n"
    text = "\n\n".join(part for part in text.split("\n\n") if not part.startswith(other))
    if dialect == SQLITE:
        for pattern, replacement in _ON_SQLITE:
            text = re.sub(pattern, replacement, text)
    return fill(text, _WORDS[dialect])


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
