"""What a drain loses while old jobs are removed beside it.

Owns the old jobs, and the turns: drains with the removal beside them, and without, on one database. The old jobs are
copies of one that the engine has finished, with its four events, made by SQL: they verify.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import apsw
import psycopg

from benchmarks.core import drain, must_pass, open_engine
from benchmarks.host import Host, settle
from onetray.clock import VirtualClock
from onetray.commands import Submit
from onetray.engine import Engine
from onetray.store import open_store

BATCH = 100
KEEP_S = 30 * 86_400
"""The old jobs ended in 2023."""
_SERIES = {
    "postgres": "(SELECT generate_series(1, {many}) AS i) AS n",
    "sqlite": "(WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {many}) SELECT i FROM s) AS n",
}
_ID = {
    "postgres": "('00000000-0000-7000-8000-' || lpad(n.i::text, 12, '0'))::uuid",
    "sqlite": "printf('00000000-0000-7000-8000-%012d', n.i)",
}


def retention(host: Host, store: str, old: int, jobs: int, rounds: int) -> dict[str, float]:
    """Jobs per second and CPU time of drains, with and without the removal of old jobs beside them."""
    with host.database(store) as url:
        fill(store, url, old)
        settle(store, url)
        with open_engine(url) as engine:
            _drain(host, store, engine, jobs, False)
            turns: dict[bool, list[dict[str, float]]] = {True: [], False: []}
            for n in range(rounds):
                for beside in (True, False) if n % 2 == 0 else (False, True):
                    turns[beside].append(_drain(host, store, engine, jobs, beside))
            left = _old_jobs(engine)
    without, beside = _medians(turns[False]), _medians(turns[True])
    return {
        "drain": round(without["per_s"], 1), "drain_beside": round(beside["per_s"], 1),
        "ratio": round(beside["per_s"] / without["per_s"], 3),
        "cpu_us": round(without["cpu_us"], 1), "cpu_us_beside": round(beside["cpu_us"], 1),
        "removed_per_s": round(beside["removed_per_s"], 1), "old_left": left,
    }  # fmt: skip


def _drain(host: Host, store: str, engine: Engine, jobs: int, beside: bool) -> dict[str, float]:
    for start in range(0, jobs, BATCH):
        must_pass(engine, [Submit(kind="noop", payload={"i": i}) for i in range(start, min(start + BATCH, jobs))])
    janitor, before = engine.janitor(retention_s=KEEP_S if beside else None), _old_jobs(engine)
    with host.stopwatch(store) as took:
        janitor.start()
        drain(engine, BATCH)
        janitor.stop()
    removed = before - _old_jobs(engine)
    return {"per_s": jobs / took.wall_s, "cpu_us": took.cpu_s / jobs * 1e6, "removed_per_s": removed / took.wall_s}


def _medians(turns: list[dict[str, float]]) -> dict[str, float]:
    return {name: median(turn[name] for turn in turns) for name in turns[0]}


def _old_jobs(engine: Engine) -> int:
    before = engine.store.now() - KEEP_S * 1_000_000
    found = engine.store.read_sql("SELECT count(*) FROM onetray.task WHERE created_at < :before", before=before)
    return int(found[0][0])


def fill(store: str, url: str, many: int) -> None:
    """Make so many jobs that ended in 2023."""
    opened = open_store(url, VirtualClock())
    opened.migrate()
    with Engine(opened) as engine:
        engine.submit("noop", {"i": 0})
        drain(engine, 1)
        ((first,),) = engine.store.read_sql("SELECT max(key) FROM onetray.task")
        columns = {table: _columns(engine, table) for table in ("task", "event")}
    task = {"key": "x.key + n.i", "job": "x.key + n.i", "id": _ID[store]}
    event = {"entity": "x.entity + n.i", "job": "x.job + n.i"}
    texts = [
        _copies(store, "task", columns["task"], task, f"x.key = {first}", many),
        _copies(store, "event", [c for c in columns["event"] if c != "id"], event, f"x.entity = {first}", many),
    ]
    last = first + many
    if store == "sqlite":
        _run_sqlite(url, [*texts, f"UPDATE counter SET value = {last} WHERE name = 'entity_key'"])
    else:
        _run_postgres(url, [*texts, f"SELECT setval('onetray.entity_key', {last})"])


def _columns(engine: Engine, table: str) -> list[str]:
    if engine.store.dialect == "sqlite":
        return [name for (name,) in engine.store.read_sql(f"SELECT name FROM pragma_table_info('{table}')")]
    of = f"table_schema = 'onetray' AND table_name = '{table}'"
    return [name for (name,) in engine.store.read_sql(f"SELECT column_name FROM information_schema.columns WHERE {of}")]


def _copies(store: str, table: str, columns: list[str], own: dict[str, str], where: str, many: int) -> str:
    values = ", ".join(own.get(column, f"x.{column}") for column in columns)
    order = "n.i" if table == "task" else "n.i, x.version"
    return (
        f"INSERT INTO onetray.{table} ({', '.join(columns)}) SELECT {values} "
        f"FROM onetray.{table} AS x CROSS JOIN {_SERIES[store].format(many=many)} WHERE {where} ORDER BY {order}"
    )


def _run_postgres(url: str, texts: list[str]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for text in texts:
            connection.execute(text.encode())


def _run_sqlite(url: str, texts: list[str]) -> None:
    connection: Any = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")
    for text in texts:
        connection.execute(text.replace("onetray.", ""))
    connection.execute("COMMIT")
    connection.close()
