"""One transaction on SQLite: statements, batches, checked moves, claims. And one snapshot."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from functools import cache
from heapq import merge
from typing import TYPE_CHECKING, Any

import apsw
import orjson

from onetray import failpoints
from onetray.domain.errors import GuardFailed
from onetray.domain.machine import Transition
from onetray.notify.new_work import NewWork, count_due, count_statement
from onetray.store.base import WAKING, Columns, FullClaim, LoneClaim, LoneTask, Rows, in_rows
from onetray.store.event_log import BLOCK, NO_ENTRY, NewRow, long_lists, rows_of, rows_of_move, slices_of
from onetray.store.fast_claim_sqlite import pick_one, take_one
from onetray.store.interned import InternedNames
from onetray.store.limit_rows import BlockedLaneRow
from onetray.store.rows import ClaimedRow, FlowRow, StageRow, TaskRow, TaskTextsRow
from onetray.store.sql_template import SQLITE, Statement, single_row
from onetray.store.statements import Statements
from onetray.store.waiting_rows import update_waiting

if TYPE_CHECKING:
    from onetray.store.sqlite import SqliteStore

SHORT_BYTES = 4_096
"""How long the texts of a task may be to be read with those of other tasks, in one value."""
FEW = 2_000
"""How many rows a query may find at most to be made once for keys with different limits."""
_TASK, _READY = (single_row(name, SQLITE).sql for name in ("insert_task", "insert_ready"))
_LAST_KEY = "SELECT value FROM counter WHERE name = 'entity_key'"
_SET_LAST_EVENT = "UPDATE counter SET value = ?1 WHERE name = 'event_id'"
_SET_BOTH = "UPDATE counter SET value = iif(name = 'event_id', ?1, ?2) WHERE name IN ('event_id', 'entity_key')"
SINGLE = {name: single_row(name, SQLITE).sql for name in ("insert_lease", "delete_ready", "insert_ready")}
"""The statements of a claim for a batch of one row, whose values are parameters: no JSON is made and parsed for it."""


class SqliteTx:
    is_callers = skips_locked = False

    def __init__(self, connection: apsw.Connection, store: SqliteStore) -> None:
        self._connection = connection
        self._statements: Statements = store.statements
        self.names: InternedNames = store.names
        self.mixed, self.limited = store.mixed, store.limited
        self._now = store.time.now()
        self.last_event, self.last_key = store.last_event, store.last_key
        self.wakes = False
        self.work: NewWork[int] = NewWork()

    @property
    def now(self) -> int:
        return self._now

    def query(self, name: str, /, **params: Any) -> Rows:
        statement = self._statements.by_name[name]
        self.wakes |= name in WAKING
        count_statement(self.work, name, params)
        params.setdefault("now", self._now)
        rows = statement.rows(self._connection.execute(statement.sql, bind_sqlite(statement, params)).fetchall())
        if name == "open_ready":
            self.work.count([row.queue for row in rows if row.queue > 0], 0)
        return rows

    query_later = query

    def batch(self, name: str, columns: Columns, /, **params: Any) -> Rows:
        self.wakes |= name in WAKING
        count_statement(self.work, name, columns)
        if name in SINGLE and len(columns["key"]) == 1:
            self._connection.execute(SINGLE[name], _only_row(columns))
            return []
        statement = self._statements.for_batch(name, columns)
        if name == "insert_due":
            count_due(self.work, columns["at"], self.now)
        params = {"now": self._now, **params, **columns}
        return statement.rows(self._connection.execute(statement.sql, with_batch(statement, params)).fetchall())

    def move(self, hops: tuple[Transition, ...], columns: Columns, held: bool = False) -> None:
        is_single = len(columns["key"]) == 1
        move = self._statements.move(hops, _only_row(columns) if is_single else columns, held)
        self.wakes = True
        for size, part in slices_of(columns, len(columns["key"]), BLOCK // len(hops)):
            event = self._new_events(size * len(hops))
            failpoints.hit("moving")
            params = {**(_only_row(part) if is_single else part), "event": event, "size": size}
            self._connection.execute(move.sql, params if is_single else with_batch(move, params))
            changed = self._connection.changes()
            if changed != size:
                raise GuardFailed(f"{move.name} changed {changed} rows instead of {size}")
            failpoints.hit("updated")
            self._record(event, rows_of_move(hops, part))
            if long := long_lists(hops, part):
                for step in ("page", "trim"):
                    self.query(f"{step}_events_of_{hops[0].entity}", keys=long)
            failpoints.hit("moved")
        update_waiting(self, hops, columns)

    def _new_events(self, count: int) -> int:
        """Take ids for events. Returns the first."""
        first = self.last_event + 1
        self.last_event += count
        return first

    def write_counters(self, store: SqliteStore) -> None:
        """Record which ids of events and which keys are taken: once, at the end of the transaction."""
        if self.last_key != store.last_key:
            self._connection.execute(_SET_BOTH, (self.last_event, self.last_key))
        elif self.last_event != store.last_event:
            self._connection.execute(_SET_LAST_EVENT, (self.last_event,))

    def _record(self, event: int, rows: Iterable[NewRow]) -> None:
        """Write rows of the log, whose events have the ids from this one on."""
        for row in rows:
            self.write_batch(event + row.place, row.columns, row.flows)

    def write_batch(self, id_: int, row: dict[str, Any], flows: list[int]) -> None:
        self._connection.execute(self._statements.by_name["insert_event_batch"].sql, {**row, "event": id_, "place": 0})
        if flows:
            self.batch("insert_flow_events", {"job": flows}, event=id_, place=0)

    def lock(self, keys: list[int]) -> list[TaskRow]:
        # BEGIN IMMEDIATE has locked the database.
        rows = self.query("lock_tasks", keys=keys)
        failpoints.hit("locked")
        return rows

    def lock_flows(self, keys: list[int]) -> list[FlowRow]:
        rows = self.query("lock_flows", keys=keys)
        failpoints.hit("flows_locked")
        return rows

    lock_free_flows = lock_flows

    def lock_flows_and_tasks(
        self, flows: list[int], tasks: list[int]
    ) -> tuple[list[FlowRow], list[TaskRow], list[StageRow]]:
        return self.lock_flows(flows), self.lock(tasks), self.query("stages_of_tasks", keys=tasks)

    def pick(self, queue: int, kinds: list[int] | None, limit: int, past_breakers: bool = False) -> list[ClaimedRow]:
        params = {"queue": queue, "limit": limit, "past_breakers": int(past_breakers)}
        if kinds is None:
            rows = self._claimable("claim_any", {"rank": -(2**31), "task": 0, **params})
        else:
            by_kind = [self._claimable("claim_kind", {"kind": k, **params}) for k in kinds]
            rows = by_kind[0] if len(by_kind) == 1 else list(itertools.islice(merge(*by_kind), limit))
        if rows:
            # A process whose clock is ahead may have made them claimable.
            self._now = max(self._now, max([row.seen_at for row in rows]))
        return rows

    def lock_blocked_lanes(self, limits: Mapping[int, int]) -> list[BlockedLaneRow]:
        found: list[BlockedLaneRow] = [
            row for most, keys in in_classes(limits) for row in self.query("lock_blocked_lanes", keys=keys, limit=most)
        ]
        left, first = dict(limits), list[BlockedLaneRow]()
        for row in sorted(found, key=lambda row: (row.rank, row.turn, row.key)):
            left[row.blocked_on] -= 1
            if left[row.blocked_on] >= 0:
                first.append(row)
        return first

    def pick_from_lanes(self, limits: Mapping[int, int]) -> list[ClaimedRow]:
        # The keys of too many tasks first: SQLite knows no limit for each lane, and a statement for each costs more.
        ((found,),) = self.query("first_keys_of_lanes", lanes=list(limits), limit=max(limits.values()))
        lanes: dict[str, str] = orjson.loads(found)
        first = (sorted(orjson.loads(tasks))[: limits[int(lane)]] for lane, tasks in lanes.items())
        # Sorted: tasks of several lanes that came in together stand on the same pages.
        keys = sorted(task for tasks in first for _, task in tasks)
        rows = self._claimable("claim_tasks", {"keys": orjson.dumps(keys).decode()})
        self.not_before(max((row.seen_at for row in rows), default=0))
        return rows

    def _claimable(self, name: str, params: dict[str, Any]) -> list[ClaimedRow]:
        """The rows of a claim, all in one row of JSON: apsw releases the GIL for each row, and waits to get it back."""
        claim = self._statements.by_name[name]
        params |= {"now": self._now, "short": SHORT_BYTES}
        found: Any = self._connection.execute(_in_one_row(claim), params).get
        rows: list[ClaimedRow] = claim.rows(orjson.loads(found[0]))
        # An aggregate promises no order.
        rows.sort()
        long = orjson.loads(found[1])
        if not long:
            return rows
        texts = {row.key: row for row in self.query("texts_of_tasks", keys=long)}
        return [row._replace(**texts[row.key]._asdict()) if row.key in texts else row for row in rows]

    def claim_full(self, claim: LoneClaim, limit: int) -> FullClaim | None:
        # There are no round trips to save.
        return None

    def claim_one(self, claim: LoneClaim) -> LoneTask | None:
        picked = pick_one(self._connection, claim, self._now)
        if picked is None:
            return None
        self.wakes = True
        # A process whose clock is ahead may have made it claimable.
        self.not_before(picked[0].seen_at)
        return take_one(self._connection, claim, *picked, self._now, self._new_events(1))

    def lock_request(self, ns: int, worker: str, request_key: str) -> None:
        return

    def insert_tasks(self, tasks: Columns, ready: Columns, events: Columns) -> None:
        self.create("insert_member" if "stage" in tasks else "insert_task", tasks, events)
        self.batch("insert_ready", ready)

    def create(self, statement: str, columns: Columns, events: Columns) -> None:
        size = len(columns["key"])
        for (n, part), (_, its_events) in zip(slices_of(columns, size), slices_of(events, size), strict=True):
            event = self._new_events(n)
            self.batch(statement, part, event=event)
            self._record(event, rows_of(its_events))

    def insert_task(self, task: Columns, event: Columns) -> int:
        """Write one task that is claimable at once, without a batch: parsing JSON takes longer than writing a row.

        Returns its key. The caller counts it as new work.
        """
        (key,), now = self.new_keys(1), self._now
        row = {**task, "key": key, "job": key, "created_at": now, "updated_at": now, "run_at": now}
        row["rank"], row["event"] = -row["priority"], self._new_events(1)
        self._connection.execute(_TASK, row)
        self._connection.execute(_READY, row)
        self.write_batch(row["event"], {**NO_ENTRY, **event, "entity": key, "ts": now}, [])
        self.wakes = True
        return key

    def note(self, statement: str, columns: Columns) -> None:
        size = len(columns["key"])
        event = self._new_events(size)
        self.batch(statement, columns, event=event)
        self.query("insert_notes_of_flows", event=event, size=size, of_flows=int(statement == "insert_flow_note"))

    def fetch(self, sql: str, params: dict[str, Any]) -> Rows:
        return self._connection.execute(sql.replace("onetray.", ""), params).fetchall()

    def record(self, event: Columns) -> None:
        self.wakes = True
        self._record(self._new_events(1), rows_of(event))

    def new_keys(self, count: int) -> list[int]:
        last = self._read_last_key() if self.last_key is None else self.last_key
        self.last_key = last + count
        return list(range(last + 1, last + count + 1))

    def _read_last_key(self) -> int:
        ((last,),) = self._connection.execute(_LAST_KEY).fetchall()
        assert isinstance(last, int)
        return last

    def new_leases(self, count: int) -> list[int]:
        return self._count("lease_key", count)

    def new_lanes(self, count: int) -> list[int]:
        return self._count("lane_key", count)

    def not_before(self, at: int) -> None:
        self._now = max(self._now, at)

    def _count(self, name: str, count: int) -> list[int]:
        sql = "UPDATE counter SET value = value + ? WHERE name = ? RETURNING value"
        ((last,),) = self._connection.execute(sql, (count, name)).fetchall()
        assert isinstance(last, int)
        return list(range(last - count + 1, last + 1))


def in_classes(limits: Mapping[int, int]) -> list[tuple[int, list[int]]]:
    """The keys with similar limits, together, under a limit that is at most twice as high: a power of two.

    All together if that costs little.
    """
    groups: dict[int, list[int]] = {}
    most = max(limits.values(), default=0)
    if most * len(limits) <= FEW:
        return [(most, list(limits))] if limits else []
    for key, limit in limits.items():
        groups.setdefault(1 << (limit - 1).bit_length(), []).append(key)
    return list(groups.items())


@cache
def _in_one_row(claim: Statement) -> str:
    """The query of a claim with its rows as JSON, without long texts; and the keys of the tasks that have some."""
    short = "octet_length(payload) + coalesce(octet_length(input), 0) <= :short"
    columns = [f"iif({short}, {c}, NULL)" if c in TaskTextsRow._fields[1:] else c for c in ClaimedRow._fields]
    rows = f"json_group_array(json_array({', '.join(columns)}))"
    return f"SELECT {rows}, json_group_array(key) FILTER (WHERE NOT ({short})) FROM ({claim.sql})"


_EVENT_ROWS = (
    "id INTEGER, entity INTEGER, job INTEGER, ts INTEGER, ns INTEGER, version INTEGER, fence INTEGER, "
    "attempts INTEGER, type TEXT, was TEXT, state TEXT, actor TEXT, payload TEXT, batch INTEGER"
)


class SqliteSnapshot:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def select(self, sql: str, /) -> list[dict[str, Any]]:
        cursor = self._connection.execute(sql.replace("onetray.", ""))
        try:
            names = [column[0] for column in cursor.get_description()]
        except apsw.ExecutionCompleteError:
            return []
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def decode_events(self, sql: str, /) -> None:
        """In a table: the joins of the verifier need indexes."""
        self._connection.execute("PRAGMA query_only = OFF")
        try:
            # With types: an index on a column without one serves no comparison with a number.
            self._connection.execute(f"CREATE TEMP TABLE event_rows ({_EVENT_ROWS}, PRIMARY KEY (id)) STRICT")
            self._connection.execute(f"INSERT INTO event_rows {sql.replace('onetray.', '')}")
            for columns in ("entity, version", "type", "batch"):
                name = columns.replace(", ", "_")
                self._connection.execute(f"CREATE INDEX temp.event_rows_{name} ON event_rows ({columns})")
        finally:
            self._connection.execute("PRAGMA query_only = ON")


def sha256_hex(*text: Any) -> str | None:
    return None if text[0] is None else hashlib.sha256(text[0].encode()).hexdigest()


def _only_row(columns: Columns) -> dict[str, Any]:
    """The values of a batch of one row."""
    return {name: values[0] if isinstance(values, list) else values for name, values in columns.items()}


def bind_sqlite(statement: Statement, params: dict[str, Any]) -> dict[str, Any]:
    for name in statement.lists:
        params[name] = orjson.dumps(list(params[name])).decode()
    return params


def with_batch(statement: Statement, params: Columns) -> dict[str, Any]:
    """Add the batch to the parameters as one JSON value."""
    only = params[statement.columns[0]] if len(statement.columns) == 1 else None
    batch = only if isinstance(only, list) else list(in_rows(params, statement.columns))
    return {**params, "batch": orjson.dumps(batch).decode()}
