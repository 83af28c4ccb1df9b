"""A database that the version before the log in batches has made: tasks and flows in every state, notes, many tasks
that moved together, a deleted job. Version 12 of the schema, with a row for each event.

`jobs.db.gz` is a file of SQLite, `postgres.json.gz` has the rows of PostgreSQL. Each has a list of the events as that
version showed them.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import psycopg

from onetray.store.schema import migration
from onetray.store.sql_template import POSTGRES

HERE = Path(__file__).parent
VERSION = 12


def make(url: str) -> list[dict[str, Any]]:
    """Fill an empty database. Returns its events."""
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite:///")).write_bytes(gzip.decompress((HERE / "jobs.db.gz").read_bytes()))
        return _read("events.json.gz")
    made = _read("postgres.json.gz")
    with psycopg.connect(url) as connection:
        connection.execute("CREATE SCHEMA onetray")
        connection.execute(
            "CREATE TABLE onetray.migration (number integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        for number in range(6, VERSION + 1):
            connection.execute(migration(POSTGRES, number).encode())
        connection.execute("INSERT INTO onetray.migration SELECT generate_series(1, %s)", (VERSION,))
        sequences = made["rows"].pop("sequences")
        # Those that others refer to come first.
        for table in sorted(made["rows"], key=lambda name: (name != "namespace", name != "policy", name)):
            rows = json.dumps(made["rows"][table])
            connection.execute(
                f"INSERT INTO onetray.{table} OVERRIDING SYSTEM VALUE "
                f"SELECT * FROM json_populate_recordset(NULL::onetray.{table}, %s)".encode(),
                (rows,),
            )
        for sequence in sequences:
            connection.execute("SELECT setval(%s, %s)", (f"onetray.{sequence['sequencename']}", sequence["last_value"]))
    events: list[dict[str, Any]] = made["events"]
    return events


def _read(name: str) -> Any:
    return json.loads(gzip.decompress((HERE / name).read_bytes()))
