"""Tasks for tests: one in any state, and a look at everything that is written about it."""

from __future__ import annotations

from typing import Any, NamedTuple

from onetray.domain.lifecycle import (
    ASSIGNED,
    BLOCKED,
    CANCELLED,
    DEAD_LETTERED,
    FAILED,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    WAITING_INPUT,
)
from onetray.domain.task import Assignment, Event, Task
from onetray.engine import Engine

STATES = (QUEUED, ASSIGNED, RUNNING, BLOCKED, WAITING_INPUT, SUCCEEDED, FAILED, CANCELLED, DEAD_LETTERED)
TABLES = (
    "namespace", "queue", "kind", "policy", "task", "ready", "lease", "due", "event", "idempotency", "dead_letter",
    "log", "progress", "checkpoint", "label", "unique_key", "submit_window", "alias",
)  # fmt: skip
OTHER_TABLES = ("flow", "stage", "dependency", "context", "worker", "breaker", "declared_flow")
UNKNOWN_ID = "01890a5d-ac96-774b-bcce-b302099a8057"


class Made(NamedTuple):
    """A task, and how the worker `w` names the attempt that it last held."""

    id: str
    ticket: dict[str, Any]
    queue: str


def submit(engine: Engine, kind: str = "mail", payload: Any = None, **fields: Any) -> str:
    """Submit a task and answer its id."""
    id_ = engine.submit(kind, payload, **fields).id
    assert id_ is not None
    return id_


def take(engine: Engine, *, worker: str = "w", **fields: Any) -> Assignment:
    """Claim exactly one task."""
    (claimed,) = engine.claim(worker=worker, **fields)
    return claimed


def running(engine: Engine, *, worker: str = "w", **fields: Any) -> Assignment:
    """Claim exactly one task and start it."""
    claimed = take(engine, worker=worker, **fields)
    engine.start(claimed)
    return claimed


def in_state(engine: Engine, state: str, **fields: Any) -> Made:
    """A new task of the kind `mail`, brought into a state by the verbs that lead there."""
    id_, queue = submit(engine, **fields), fields.get("queue", "default")
    ticket: dict[str, Any] = {"task": id_, "fence": 1, "worker": "w"}
    if state == QUEUED:
        return Made(id_, ticket, queue)
    claimed = take(engine, queue=queue)
    assert claimed.id == id_
    if state != ASSIGNED:
        engine.start(claimed)
    match state:
        case "blocked" | "waiting_input":
            engine.pause(claimed, state=state, owner="ann", reason="asks for a signature")
        case "succeeded":
            engine.succeed(claimed, {"sent": 1})
        case "failed":
            engine.fail(claimed, "no such address", retryable=False)
        case "cancelled":
            engine.cancel(id_, hard=True)
        case "dead_lettered":
            engine.fail(claimed, "not readable", reason_code="parse_error")
    assert engine.task(id_).state == state
    return Made(id_, ticket, queue)


def written(engine: Engine) -> dict[str, list[Any]]:
    """Every row of every table."""
    return {t: sorted(engine.store.read_sql(f"SELECT * FROM onetray.{t}"), key=repr) for t in (*TABLES, *OTHER_TABLES)}


def counts(engine: Engine) -> dict[str, int]:
    (row,) = engine.store.read_sql("SELECT " + ", ".join(f"(SELECT count(*) FROM onetray.{t})" for t in TABLES))
    return dict(zip(TABLES, row, strict=True))


def written_about(engine: Engine, id_: str) -> tuple[Any, ...]:
    """Every row that belongs to one task, and how many rows there are in all."""
    key = engine.task(id_).key
    names = {"task": "key", "event": "entity", "dead_letter": "task", "log": "task", "ready": "task", "due": "task"}
    names |= {"progress": "task", "checkpoint": "task"}
    # Sorted: the plan, and with it the order, may change from one read to the next.
    rows = {
        table: sorted(engine.store.read_sql(f"SELECT * FROM onetray.{table} WHERE {column} = :key", key=key), key=repr)
        for table, column in names.items()
    }
    lease = engine.store.read_sql(
        "SELECT * FROM onetray.lease WHERE key = (SELECT lease FROM onetray.task WHERE key = :key)", key=key
    )
    return counts(engine), rows, lease


def state(engine: Engine, id_: str) -> str:
    return engine.task(id_).state


def types(engine: Engine, id_: str) -> list[str]:
    """The types of a task's events, without their common beginning."""
    return [e.type.removeprefix("task.") for e in engine.events(id_)]


def last(engine: Engine, id_: str) -> Event:
    return engine.events(id_)[-1]


def settle(engine: Engine) -> None:
    """Let the janitor do all that is due."""
    while engine.sweep():
        pass


def facts(task: Task, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(task, name) for name in names)


_OPEN = """SELECT CAST(x.id AS text), n.name FROM onetray.{table} AS x JOIN onetray.namespace AS n ON n.key = x.ns
WHERE x.finished_at IS NULL"""
_PAUSED = """SELECT q.name, n.name FROM onetray.queue AS q JOIN onetray.namespace AS n ON n.key = q.ns
WHERE q.paused_at IS NOT NULL"""
_BREAKERS = """SELECT k.name, n.name FROM onetray.breaker AS b JOIN onetray.kind AS k ON k.key = b.kind
JOIN onetray.namespace AS n ON n.key = k.ns"""


def leave_nothing_open(engine: Engine) -> None:
    """End every job, and let every queue and kind go on: what the next one submits is all there is to claim."""
    read = engine.store.read_sql
    # What a flow wants undone when it ends is a flow of its own.
    while flows := read(_OPEN.format(table="flow")):
        for flow, namespace in flows:
            engine.cancel_flow(flow, hard=True, namespace=namespace)
        # A large flow ends in steps.
        settle(engine)
    for task, namespace in read(_OPEN.format(table="task")):
        engine.cancel(task, hard=True, namespace=namespace)
    for queue, namespace in read(_PAUSED):
        engine.resume_queue(queue, namespace=namespace)
    for kind, namespace in read(_BREAKERS):
        engine.close_breaker(kind, namespace=namespace)
