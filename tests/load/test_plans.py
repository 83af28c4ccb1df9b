"""Every statement of the hot paths finds its rows by an index, however many tasks lie beside.

The databases here are made by SQL and do not verify: see tests/support/large_databases.py. `./go soak plans` runs the
same with a million tasks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import psycopg
import pytest

from onetray.domain.lifecycle import FLOW, HELD, MACHINES, TASK
from onetray.domain.machine import Transition
from onetray.engine.flows.locked import _SAVED_FLOW, _SAVED_STAGE
from onetray.engine.janitor import KNOWN
from onetray.engine.pending_writes import RUN
from onetray.store import open_store
from onetray.store.base import LoneClaim, Store
from onetray.store.full_claim_sql import CLAIM_FULL, full_claim_query
from onetray.store.low_water import LowWater
from onetray.store.sql_template import TYPE_OF, Statement
from onetray.store.statements import statements_for
from tests.support.cluster import Server
from tests.support.large_databases import BIG, FAR, FLOWS, IN_FLOW, event_of, fill, first_flow
from tests.support.plans import Cost, Steps, on_postgres, on_sqlite

IDLE = int(os.environ.get("ONETRAY_PLAN_TASKS", "300000"))
EVENTS = 200_000
LIMITS = (1, 500)
WAYS = ((1, False), (500, False), (500, True))
"""Sizes of a batch, and whether the plan is generic: made for any parameters, so the same for every size."""
CLAIMS = ("claim_any", "claim_kind", "heads_of_kind")
START = {"rank": -(2**31), "task": 0}
READS = {
    "task_by_id", "batches_of_task", "batches_after", "end_of_window", "last_event_id", "logs_of", "flow_by_id",
    "stage_by_id", "stages_of", "tasks_of_stage", "results_of_stage", "place_of_task", "results_before",
    "results_needed", "held_in_stages", "batches_of_flows", "contexts_of_flow", "current_context", "newest_before",
    "key_of_job", "entity_of_id", "list_jobs", "states_of_jobs", "jobs_of_ids", "jobs_of_name", "span_labelled",
    "next_tasks", "next_flows", "count_events", "times_of_ended",
    "log_and_progress", "kinds_of_ids", "batches_of_entities", "queues_with_work", "reports_of_flow",
    "tasks_of_events", "parents_of_events", "keys_by_correlation", "first_starts", "context_by_id", "ended_flows",
    "ended_tasks", "ids_of_tasks", "pending_tasks_of_flow", "paused_by", "explain", "error_of_task", "redrive_facts",
    "workers_by_sort", "any_worker_alive", "unregistered_claims", "kinds_in_stage", "failed_stages", "retry_facts",
    "states_of_needs", "spawner", "shares_of_tasks", "shares_of_stages", "last_logs_of", "last_batches_of_task",
    "last_reports_of_flow", "last_batches_of_flow", "longest_running", "members_to_fold",
    "count_waiting", "first_waiting_tasks", "waiting_tasks_after", "count_approvals", "first_approvals",
    "waiting_stages_after", "statistics", "list_kinds", "count_queues", "count_delayed", "count_scanned", "held_now",
    "debounced_job", "last_pauses", "number_of_queues",
}  # fmt: skip
"""What the engine runs outside of any transaction, under the planner's own settings."""
OF_KEYS = tuple(
    f"{word}jobs_of_{table}" for word in ("", "lock_") for table in ("idempotency", "unique_keys", "submit_windows")
)
MOVES = sorted(statements_for("sqlite").moves)


@dataclass(frozen=True, slots=True)
class Crowd:
    store: Any
    before: int
    """The key before the first task that can be claimed."""
    row: tuple[int, int]
    """The queue and the kind of all tasks."""

    def keys(self, limit: int) -> list[int]:
        return list(range(self.before + 1, self.before + 1 + limit))

    def ranks(self, limit: int) -> list[int]:
        first = self.before - IDLE
        return [-((key - first) % 3) for key in self.keys(limit)]

    def ids(self, limit: int) -> list[str]:
        first = self.before - IDLE
        return [f"00000000-0000-7000-8000-{key - first:012d}" for key in self.keys(limit)]

    def id_of(self, key: int) -> str:
        return f"00000000-0000-7000-8000-{key - self.before + IDLE:012d}"

    def flows(self, limit: int) -> list[int]:
        """Flows of two stages, which are open."""
        first = first_flow(self.before)
        return [first + 3 * IN_FLOW * i for i in range(limit)]

    @property
    def big(self) -> int:
        """The stage of the large flow."""
        return first_flow(self.before) + FLOWS * IN_FLOW + 1


def crowd_in(store: Store, before: int) -> Crowd:
    ((queue, kind),) = store.read_sql("SELECT queue, kind FROM onetray.task WHERE key = :key", key=before)
    return Crowd(store, before, (queue, kind))


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    url = f"sqlite:///{tmp_path_factory.mktemp('crowd') / 'jobs.db'}"
    before = fill(url, IDLE, EVENTS)
    store = open_store(url)
    yield crowd_in(store, before)
    store.close()


@pytest.fixture(scope="module")
def crowded_url(postgres: Server) -> Iterator[tuple[str, int]]:
    with postgres.database() as url:
        before = fill(url, IDLE, EVENTS)
        with psycopg.connect(url, autocommit=True) as connection:
            # Small tables, which any server has analyzed within a minute.
            connection.execute("ANALYZE onetray.waiting, onetray.statistic")
        yield url, before


@pytest.fixture(scope="module", params=[False, True], ids=["unanalyzed", "analyzed"])
def pg(request: pytest.FixtureRequest, postgres: Server, crowded_url: tuple[str, int]) -> Iterator[Crowd]:
    """The same crowd without statistics, and with them."""
    url, before = crowded_url
    store = open_store(url)
    if request.param:
        with store.connection() as connection:  # type: ignore[attr-defined]
            # Few tasks have a history so long: without any, the table would be read whole, which costs nothing.
            connection.execute(
                "INSERT INTO onetray.event_page (entity, version, events) SELECT 1000000000 + n, 64, '1' "
                "FROM generate_series(1, 5000) AS n ON CONFLICT DO NOTHING"
            )
            # Moves that were rolled back in the first round are still in the indexes.
            connection.execute("VACUUM ANALYZE")
    else:
        assert not store.read_sql("SELECT 1 FROM pg_stats WHERE schemaname = 'onetray' AND tablename = 'task'")
    yield crowd_in(store, before)
    store.close()


def params_of(name: str, crowd: Crowd, limit: int) -> dict[str, Any]:
    """Parameters with which a statement finds `limit` rows, or all that it is asked for."""
    queue, kind = crowd.row
    keys = crowd.keys(limit)
    taken = {"kind": [kind] * limit, "key": [f"key-{k - crowd.before + IDLE}" for k in keys]}
    windows = {**taken, "mode": ["throttle"] * limit}
    every: dict[str, dict[str, Any]] = {
        "claim_any": {"queue": queue, "limit": limit, "past_breakers": 0, **START},
        "claim_kind": {"queue": queue, "kind": kind, "limit": limit, "past_breakers": 0},
        "heads_of_kind": {"queue": queue, "kind": kind, "limit": limit},
        "lock_tasks": {"keys": keys},
        "delete_ready": {"queue": [queue] * limit, "rank": crowd.ranks(limit), "key": keys, "kind": [kind] * limit},
        "take_ready": {"queue": [queue] * limit, "rank": crowd.ranks(limit), "key": keys, "kind": [kind] * limit},
        "renew_lease": {"key": list(range(1, limit + 1)), "at": 0, "length": [None] * limit},
        "expired_leases": {"before": FAR - 1, "limit": limit, "ns": None},
        "leases_by_key": {"keys": list(range(1, limit + 1))}, "ids_of_tasks": {"keys": keys},
        "ended_tasks": {
            "after": keys[0] - 1, "upto": keys[-1], "ns": 1, "before": FAR, "any_state": 1, "states": [], "now": 0,
            "limit": limit, "kind": None,
        },
        "due_now": {"now": FAR, "known": list(KNOWN), "limit": limit},
        "next_due": {"known": list(KNOWN)},
        "next_expiry": {},
        "keys_of": {"ids": crowd.ids(limit)},
        "task_by_id": {"id": crowd.ids(1)[0], "namespace": "default"},
        "newest_before": {"upto": keys[-1]},
        "key_of_job": {"id": crowd.ids(1)[0], "namespace": "default"},
        "entity_of_id": {"id": crowd.ids(1)[0], "namespace": "default"},
        "list_jobs": {
            "after": keys[0] - 1, "upto": keys[-1], "namespace": "default", "since": 0, "until": 2**62, "any_state": 1,
            "states": [], "kind": None, "queue": None, "entity": None, "priority": None, "limit": limit, "labels": [],
            "labels_wanted": 0, "between": "-", "kinds": [], "any_kind": 1,
        },
        "states_of_jobs": {
            "after": keys[0] - 1, "upto": keys[-1], "namespace": "default", "since": 0, "until": 2**62, "any_state": 1,
            "states": [], "kind": None, "queue": None, "entity": None, "priority": None, "labels": [],
            "labels_wanted": 0, "between": "-", "kinds": [], "any_kind": 1,
        },
        "jobs_of_ids": {"ids": crowd.ids(limit)},
        "jobs_of_name": {"text": "order-17", "namespace": "default", "limit": limit},
        "span_labelled": {"namespace": "default", "label": "team", "labelled": "a", "upto": 2**62, "size": limit},
        "logs_of": {"id": crowd.ids(1)[0], "namespace": "default", "after": 0, "limit": limit},
        "batches_of_task": {"id": crowd.ids(1)[0], "namespace": "default", "after": 0, "limit": limit},
        "last_logs_of": {"id": crowd.ids(1)[0], "namespace": "default", "after": 0, "before": 2**62, "limit": limit},
        "last_batches_of_task": {
            "id": crowd.ids(1)[0], "namespace": "default", "after": 0, "before": 2**62, "limit": limit,
        },
        "batches_after": {
            "after": event_of(1000), "upto": 2**62, "scan": limit, "limit": limit, "ns": None, "every": 1, "types": [],
        },
        "end_of_window": {"after": event_of(1000), "upto": 2**62, "scan": limit},
        "count_events": {"after": event_of(1000), "upto": event_of(1000 + limit), "dead": "task.dead_lettered"},
        "times_of_ended": {
            "after": event_of(1000), "upto": event_of(1000 + limit), "ends": ["task.succeeded"], "ran": 1,
        },
        "tasks_of_events": {"keys": keys}, "events_of_entities": {"keys": keys},
        "keys_by_correlation": {
            "correlation_id": crowd.ids(1)[0], "id": crowd.ids(1)[0], "namespace": "default",
        },
        "first_starts": {"keys": keys, "started": TASK.start.event},
        "last_holders": {"keys": keys, "held": list(HELD)},
        "lock_batches_of_events": {"events": [event_of(key) for key in keys]},
        "remove_entries": {"key": [event_of(key) for key in keys], "varied": ["{}"] * limit},
        "delete_batches": {"keys": [event_of(key) for key in keys]},
        "prune_notes_of": {"keys": keys},
        "prune_deletions": {"type": "queue.paused", "before": FAR, "ns": None, "limit": limit},
        "copy_checkpoints": {"key": [FAR + key for key in keys], "task": keys, "succeeded": "succeeded"},
        "prune_notes": {"types": ["task.progressed"], "before": FAR, "limit": 1_000},
        "last_event_id": {},
        "outcomes_of_attempt": {"key": keys[0], "fence": 1},
        "prunable_jobs": {"before": FAR, "after": 0, "upto": FAR, "ns": None, "now": 0, "limit": limit},
        "next_tasks": {"after": keys[0], "span": limit},
        **dict.fromkeys(("keys_taken", "unique_held", "free_key"), taken),
        **{name: {**taken, "job": keys} for name in ("lock_unique", "take_unique", "link_key")},
        **{name: {"keys": keys} for name in ("prune_unique_keys", "prune_submit_windows", "prune_labels", *OF_KEYS)},
        **dict.fromkeys(("lock_windows", "windows_held", "drop_window"), windows),
        "save_window": {**windows, **dict.fromkeys(("job", "opened_at", "until_at", "replaced"), keys)},
        "debounced_job": {"job": keys[0], "mode": "throttle"},
        "copy_labels": {"to": 1, "of": keys[0]},
        **{name: {"ns": [1] * limit, "alias": taken["key"]} for name in ("alias_holders", "free_aliases")},
        "insert_aliases": {"ns": [1] * limit, "alias": taken["key"], "entity": ["task"] * limit, "key": keys},
        "hand_on_aliases": {"key": keys, "successor": [FAR + key for key in keys]},
        "entities_by_alias": {"aliases": taken["key"], "namespace": "default"},
        "aliases_of_ids": {"ids": crowd.ids(limit), "namespace": "default"},
        "dependencies_of": {"ids": crowd.ids(limit), "namespace": "default"},
        "shares_of_tasks": {"ids": crowd.ids(limit), "namespace": "default"},
        "prune_aliases": {"keys": keys},
        "queues_with_work": {"keys": [queue]},
        "explain": {
            "id": crowd.ids(1)[0], "namespace": "default", "run": RUN, "rescheduled": "task.rescheduled",
            "cancel_requested": "task.cancel_requested", "flow_paused": FLOW.pause.event,
        },
        "error_of_task": {"id": crowd.ids(1)[0], "namespace": "default"}, "redrive_facts": {"keys": keys},
        "workers_by_sort": {"namespace": "default", "limit": 1000}, "any_worker_alive": {"running": "running"},
        "unregistered_claims": {
            "claimed": TASK.claim.event, "since": 0, "scan": limit, "namespace": "default", "queue": "default",
        },
        **of_overview(crowd, limit),
        "last_cursor": {"keys": keys}, "log_and_progress": {"keys": keys}, "kinds_of_ids": {"ids": crowd.ids(limit)},
    }  # fmt: skip
    return every[name] if name in every else of_flows(name, crowd, limit)


def of_overview(crowd: Crowd, limit: int) -> dict[str, dict[str, Any]]:
    """The statistics, what waits for a person, and the queues and workers of the overview."""
    log = {"after": event_of(1000), "upto": event_of(1000 + limit)}
    waiting = {"ns": 1, "state": "waiting_input"}
    approvals = {"ns": 1, "state": "waiting", "most": limit}
    page = {"ns": 1, "since": 10, "after": 10, "limit": limit}
    return {
        "count_waiting": {**waiting, "most": limit}, "first_waiting_tasks": {**waiting, "limit": limit},
        "waiting_tasks_after": {**page, "state": "waiting_input"}, "count_approvals": approvals,
        "first_approvals": {**approvals, "limit": 10}, "waiting_stages_after": {**page, "state": "waiting"},
        "delete_waiting": {"keys": crowd.keys(limit)}, "end_of_count": {**log, "scan": limit}, "count_log": log,
        "varied_log": log, "sample_ended": {**log, "ends": [TASK.succeed.event], "step": 1},
        "times_of_tasks": {"keys": crowd.keys(limit)},
        "statistics": {"ns": 1, "span": 60, "since": 0, "until": limit * 60_000_000, "width": 60_000_000},
        "prune_statistics": {"span": 60, "before": FAR, "limit": limit},
        "list_kinds": {"namespace": "default", "limit": limit, "scan": limit},
        "count_queues": {"ns": 1, "most": limit, "limit": limit, "full_queues": [], "full_kinds": []},
        "number_of_queues": {"ns": 1, "most": limit},
        "count_delayed": {"ns": 1, "run": RUN, "most": limit},
        "count_scanned": {"ns": 1, "due": limit, "most": limit},
        "held_now": {"ns": 1, "most": limit, "running": "running"},
        "last_pauses": {"ns": 1, "paused": "queue.paused", "since": 0, "limit": limit},
        "longest_running": {"namespace": "default", "running": "running", "leases": limit, "limit": limit},
    }  # fmt: skip


def of_flows(name: str, crowd: Crowd, limit: int) -> dict[str, Any]:
    flows = crowd.flows(limit)
    stages, members = [key + 1 for key in flows], [key + 4 for key in flows]
    flow, id_ = flows[0], crowd.id_of(flows[0])
    middle = crowd.big + BIG // 2
    page = {"stage": crowd.big, "after": middle, "limit": limit}
    span = {"stage": crowd.big, "after": middle, "upto": middle + limit, "at": FAR}
    ours = {"id": id_, "namespace": "default"}
    every: dict[str, dict[str, Any]] = {
        "lock_flows": {"keys": flows},
        "flows_of_ids": {"ids": [crowd.id_of(key) for key in flows]},
        "shares_of_stages": {"ids": [crowd.id_of(key) for key in flows], "namespace": "default"},
        "flows_of_stages": {"ids": [crowd.id_of(key) for key in stages]},
        "flows_of_tasks": {"keys": members},
        "stages_by_key": {"keys": stages},
        "unended_stages": {"job": flow},
        "next_stage": {"job": flow, "ord": 0},
        "stage_by_name": {"job": flow, "name": "stage 2"},
        "any_started": {"job": flow},
        "save_stage": {"key": stages, **{c: [_column(c)] * limit for c in _SAVED_STAGE if c != "key"}},
        "save_flow": {"key": flows, **{c: [_column(c)] * limit for c in _SAVED_FLOW if c != "key"}},
        "next_to_open": page, "unheld_tasks": page, "unended_tasks": page, "tasks_without_cancel": page,
        "queued_of_stage": {**page, "most": 1},
        "open_ready": span,
        "open_due": {**span, "at": 0, "what": RUN},
        "policies_of_stage": span,
        "dependents": {"keys": [key - 1 for key in members]},
        "meet": {"key": members, "met": [1] * limit},
        "needs_of": {"keys": members},
        "members_named": {"job": flow, "names": ["task 10"], "ids": [crowd.id_of(members[0])]},
        "members_to_copy": {**page, "ord": 1},
        "outcomes_of_members": {"stage": stages[0], "after": 0, "cancelled": "cancelled"},
        "told_by_successes": {"keys": members, "succeeded": "succeeded"},
        "spawned_in_stage": {"stage": stages[0], "after": 0}, "prune_aliases_of_contexts": {"keys": flows},
        "successor_in_stage": {"stage": stages[0], "key": members[0]},
        "stages_to_copy": {"job": flow},
        "to_compensate": {"job": flow},
        "held_in_stages": {"stages": [crowd.big]},
        "last_reports_of_flow": {"job": flow, "after": 0, "before": 2**62, "limit": limit},
        "last_batches_of_flow": {"job": flow, "before": 2**62, "limit": limit},
        "reports_of_flow": {"job": flow, "after": 0, "limit": limit}, "last_report_numbers": {"keys": flows},
        "errors_of_stages": {"keys": stages}, "names_of_tasks": {"keys": members},
        "prunable_flows": {"before": FAR, "after": 0, "upto": FAR, "ns": None, "now": 0, "limit": limit},
        "next_flows": {"after": flow, "span": limit}, "sizes_of_flows": {"keys": flows},
        "members_of_stages": {"keys": stages}, "stage_keys_of_flows": {"keys": flows},
        "prune_flows": {"keys": flows}, "prune_contexts": {"keys": flows}, "prune_idempotency": {"keys": flows},
        "prune_stages": {"keys": stages}, "prune_tasks": {"keys": members}, "prune_flow_events": {"keys": flows},
        "prune_flow_events_by_id": {"job": flows, "key": [event_of(key) for key in flows]},
        "paused_by": {"flow": flow, "type": FLOW.pause.event},
        "kinds_in_stage": {"stage": crowd.big, "scan": limit, "limit": 20}, "failed_stages": {"job": flow},
        "retry_facts": {"keys": flows, "singleton": "singleton"}, "states_of_needs": {"keys": members},
        "spawner": {"key": members[0]},
        "prune_dependencies": {"keys": members}, "prune_logs": {"keys": members},
        "prune_dead_letters": {"keys": members},
        "job_to_delete": {"id": id_, "ns": 1}, "members_to_delete": page,
        **{f"{part}_to_delete": {"job": flow, "limit": limit} for part in ("contexts", "notes", "stages")},
        "prune_dependencies_on": {"keys": members},
        "flow_by_id": ours, "stages_of": ours, "current_context": ours,
        "contexts_of_flow": {**ours, "after": 0, "limit": limit},
        "stage_by_id": {"id": crowd.id_of(stages[0]), "namespace": "default"},
        "place_of_task": {"id": crowd.id_of(members[0]), "namespace": "default"},
        "tasks_of_stage": page, "results_of_stage": page,
        "results_before": {"job": flow, "ord": 2},
        "results_needed": {"task": members[0]},
        "batches_of_flows": {"keys": [flow], "after": 0, "upto": FAR, "limit": limit, "every": 0, "types": ["x"]},
        "context_by_id": {"id": id_, "alias": "x", "namespace": "default"},
        "context_in_flow": {"id": id_, "alias": "x", "ns": 1, "job": flow},
        "ended_flows": {
            "after": flows[0] - 1, "upto": flows[-1], "ns": 1, "before": FAR, "any_state": 1, "states": [], "now": 0,
            "limit": limit, "kind": None,
        },
        "pending_tasks_of_flow": {
            "stages": [flow + 1, flow + 2], "namespace": "default", "ready_by": FAR, "any_kind": 1, "kinds": [],
            "queue": None, "run": RUN, "going_stages": ["pending"], "going_flows": ["pending"], "limit": limit,
            "offset": 0,
        },
        "parents_of_events": {"keys": flows + stages},
        "batches_of_entities": {"keys": [flow, flow + 1, flow + 2], "after": 0, "limit": limit},
        "members_to_fold": {"stages": stages, "limit": limit},
    }  # fmt: skip
    return every[name]


def _column(name: str) -> Any:
    return 0 if TYPE_OF.get(name) in ("bigint", "integer") else "x"


OTHERS = (
    "lock_tasks", "delete_ready", "take_ready", "renew_lease", "expired_leases", "leases_by_key", "due_now", "next_due",
    "next_expiry",
    "keys_of", "task_by_id", "logs_of", "batches_of_task", "batches_after", "end_of_window", "last_event_id",
    "tasks_of_events", "events_of_entities", "keys_by_correlation", "first_starts", "last_holders",
    "lock_batches_of_events", "remove_entries", "delete_batches", "prune_notes_of", "prune_deletions", "prune_notes",
    "copy_checkpoints",
    "outcomes_of_attempt", "prunable_jobs", "keys_taken", "last_cursor", "newest_before", "key_of_job", "entity_of_id",
    "list_jobs", "states_of_jobs", "jobs_of_ids", "jobs_of_name", "span_labelled",
    "next_tasks", "count_events", "times_of_ended", "log_and_progress", "kinds_of_ids", *OF_KEYS,
    "lock_windows", "windows_held", "save_window", "drop_window", "debounced_job", "prune_submit_windows",
    "lock_unique", "unique_held", "take_unique", "link_key", "prune_unique_keys", "prune_labels", "copy_labels",
    "queues_with_work", "free_key", "alias_holders", "free_aliases", "insert_aliases", "hand_on_aliases",
    "entities_by_alias", "aliases_of_ids", "dependencies_of", "prune_aliases", "ids_of_tasks", "ended_tasks",
    "redrive_facts", "error_of_task", "workers_by_sort", "any_worker_alive", "explain", "shares_of_tasks",
    "last_logs_of", "last_batches_of_task",
    "count_waiting", "first_waiting_tasks", "waiting_tasks_after", "count_approvals", "first_approvals",
    "delete_waiting", "end_of_count", "count_log", "varied_log", "sample_ended",
    "times_of_tasks", "statistics", "prune_statistics", "list_kinds", "number_of_queues", "count_delayed",
    "last_pauses",
)  # fmt: skip
FOR_FLOWS = (
    "lock_flows", "flows_of_ids", "flows_of_stages", "flows_of_tasks", "stages_by_key", "unended_stages", "next_stage",
    "stage_by_name", "any_started", "save_stage", "save_flow", "next_to_open", "unheld_tasks",
    "unended_tasks", "tasks_without_cancel", "queued_of_stage", "open_ready", "open_due", "policies_of_stage",
    "dependents", "meet", "needs_of", "members_named", "members_to_copy", "successor_in_stage",
    "outcomes_of_members", "told_by_successes", "spawned_in_stage", "prune_aliases_of_contexts",
    "stages_to_copy", "to_compensate", "held_in_stages", "prunable_flows", "members_of_stages", "stage_keys_of_flows",
    "next_flows", "sizes_of_flows", "prune_flows", "prune_contexts", "prune_idempotency", "prune_stages",
    "prune_tasks", "prune_flow_events", "prune_flow_events_by_id", "paused_by",
    "prune_dependencies", "prune_logs", "prune_dead_letters",
    "job_to_delete", "members_to_delete", "contexts_to_delete", "notes_to_delete", "stages_to_delete",
    "prune_dependencies_on",
    "flow_by_id", "stage_by_id", "stages_of", "tasks_of_stage", "results_of_stage", "place_of_task",
    "results_before", "results_needed", "batches_of_flows", "batches_of_entities", "parents_of_events",
    "contexts_of_flow",
    "current_context", "reports_of_flow", "last_report_numbers", "errors_of_stages", "names_of_tasks",
    "context_by_id", "context_in_flow", "ended_flows", "pending_tasks_of_flow", "kinds_in_stage", "failed_stages",
    "retry_facts", "states_of_needs", "spawner", "unregistered_claims", "shares_of_stages",
    "last_reports_of_flow", "last_batches_of_flow", "members_to_fold", "count_scanned", "held_now", "longest_running",
    "count_queues", "waiting_stages_after",
)  # fmt: skip
OF_A_STAGE = {"tasks_of_stage", "results_of_stage", "kinds_in_stage"}
"""Outside of a transaction PostgreSQL may read a stage to its end and sort it, for a large page of it."""
FEW = {
    "held_in_stages": {"lease", "l", "j"},
    "count_events": {"dead_letter"},
    "pending_tasks_of_flow": {"lease"},
    **{name: {"worker", "x", "w"} for name in ("workers_by_sort", "any_worker_alive", "unregistered_claims")},
    **{name: {"dead_letter", "breaker"} for name in ("explain", "redrive_facts")},
    "retry_facts": {"unique_key"},
    **{
        name: {"lease", "l", "j", "x", "worker", "w", "due"}
        for name in ("count_scanned", "held_now", "longest_running")
    },
    "statistics": {"statistic_cursor"},
    "count_queues": {"ready", "lane"},
    "queues_with_work": {"lane"},
    "waiting_stages_after": {"kind"},
}
"""What may be read from end to end: there are as many leases as claims, however many tasks there are. The crowd has no
dead letters, no breakers, few unique keys and few ready tasks."""


def statement_of(crowd: Crowd, name: str, params: dict[str, Any]) -> Statement:
    found: Statement = crowd.store.statements.by_name[name]
    return crowd.store.statements.for_batch(name, params) if found.columns else found


def cost_of(crowd: Crowd, name: str, limit: int, generic: bool) -> Cost:
    params = params_of(name, crowd, limit)
    return on_postgres(crowd.store, statement_of(crowd, name, params), params, generic=generic, plain=name in READS)


def steps_of(crowd: Crowd, name: str, limit: int) -> Steps:
    params = params_of(name, crowd, limit)
    return on_sqlite(crowd.store, statement_of(crowd, name, params), params)


def try_each(check: Callable[..., None], crowd: Crowd, names: Iterable[str], ways: Iterable[tuple[Any, ...]]) -> None:
    """Check every statement in every way, and fail with all that cost more than they may."""
    faults = []
    for name, way in product(names, ways):
        try:
            check(crowd, name, *way)
        except AssertionError as e:
            faults.append(f"{name} {way}: {e}")
    assert not faults, "\n".join([f"{len(faults)} faults", *faults])


def sizes() -> Iterator[tuple[int]]:
    return ((limit,) for limit in LIMITS)


def check_claim_on_postgres(pg: Crowd, name: str, limit: int, generic: bool) -> None:
    cost = cost_of(pg, name, limit, generic)
    assert not cost.whole - {"queue"}, cost
    assert {"ready_pkey", "ready_kind"} & cost.through, cost
    assert not {"Sort", "Incremental Sort", "Bitmap Heap Scan"} & cost.nodes, cost
    # A ready row and its task for each, and the queue.
    assert cost.rows <= 2 * limit + 3, cost
    assert cost.buffers <= 12 * limit + 30, cost


def check_statement_on_postgres(pg: Crowd, name: str, limit: int, generic: bool) -> None:
    cost = cost_of(pg, name, limit, generic)
    assert not cost.whole - {"queue", "namespace", "kind", "policy"} - FEW.get(name, set()), cost
    # Of three tasks in the crowd one can be pruned; a line of a list has three names and an alias besides.
    assert cost.rows <= 6 * limit + 10, cost
    assert cost.buffers <= 20 * limit + 60, cost


def check_statement_for_flows_on_postgres(pg: Crowd, name: str, limit: int, generic: bool) -> None:
    cost = cost_of(pg, name, limit, generic)
    few = FEW.get(name, set())
    assert not cost.whole - {"queue", "namespace", "kind", "policy"} - few, cost
    if not few:
        # A flow has two stages and four tasks, and of three flows one can be pruned.
        whole_stage = 2 * BIG if name in OF_A_STAGE else 0
        assert cost.rows <= 8 * limit + 200 + whole_stage, cost
        assert cost.buffers <= 40 * limit + 100 + whole_stage, cost


def check_move_on_postgres(pg: Crowd, title: str, limit: int, generic: bool) -> None:
    hops = hops_of(title)
    for params, held in product(move_params(pg, title, limit), {False, title in UNSEEN}):
        move = pg.store.statements.move(hops, params, held)
        # Of flows nothing moves here: that would end it.
        unchecked = replace(move, sql=re.sub(r"count\(\*\) / CASE .* END", "count(*)", move.sql))
        cost = on_postgres(pg.store, unchecked, {**params, "size": limit}, generic=generic)
        assert not cost.whole, cost
        assert f"{hops[0].entity}_pkey" in cost.through, cost
        # What is carried over is copied from another task.
        assert cost.rows <= limit * (2 if title == "carry_over" else 1), cost
        assert cost.buffers <= 40 * limit + 60, cost


def test_claims_on_postgres_read_what_they_take(pg: Crowd) -> None:
    try_each(check_claim_on_postgres, pg, CLAIMS, WAYS)


def check_full_claim(crowd: Crowd, name: str, limit: int, generic: bool) -> None:
    queue, kind = crowd.row
    policies = [key for (key,) in crowd.store.read_sql("SELECT key FROM onetray.policy")]
    claim = LoneClaim(queue, 1, "w", "r", "worker:w", 0, [kind], policies, [30_000_000] * len(policies))
    sql, params = full_claim_query(claim, limit, LowWater(), None, None)
    assert sql == CLAIM_FULL.sql
    cost = on_postgres(crowd.store, CLAIM_FULL, params, generic=generic)
    assert not cost.whole - {"queue"}, cost
    # A ready row and a task to lock, each once more to write it, the queue, and its own results.
    assert cost.rows <= 12 * limit + 10, cost
    assert cost.buffers <= 60 * limit + 60, cost


def test_a_claim_in_one_statement_reads_what_it_takes(pg: Crowd) -> None:
    try_each(check_full_claim, pg, ("claim_full",), WAYS)


def test_statements_on_postgres_read_what_they_are_asked_for(pg: Crowd) -> None:
    try_each(check_statement_on_postgres, pg, OTHERS, WAYS)


def test_statements_for_flows_on_postgres_read_what_they_are_asked_for(pg: Crowd) -> None:
    try_each(check_statement_for_flows_on_postgres, pg, FOR_FLOWS, WAYS)


def test_moves_on_postgres_find_their_rows_by_key(pg: Crowd) -> None:
    try_each(check_move_on_postgres, pg, MOVES, WAYS)


# It takes the last row of a walk from the end; the first of all workers that is alive; the newest jobs; what is due
# next; the only row of a table; all namespaces; the rows that it has chosen to delete.
WALKED = {
    "last_event_id": {"n"}, "any_worker_alive": {"w"}, "list_kinds": {"x"}, "count_delayed": {"n"},
    "count_scanned": {"n"}, "statistics": {"c"}, "prune_statistics": {"n", "o"}, "prune_notes": {"o"},
}  # fmt: skip


def check_claim_on_sqlite(sqlite: Crowd, name: str, limit: int) -> None:
    found = steps_of(sqlite, name, limit)
    assert not found.whole(), found
    assert not [d for d in found.details if "TEMP B-TREE" in d], found
    assert found.full_scan_steps == found.sorts == 0, found
    assert found.steps <= 60 * limit + 100, found


def check_statement_on_sqlite(sqlite: Crowd, name: str, limit: int) -> None:
    found = steps_of(sqlite, name, limit)
    assert not found.whole() - WALKED.get(name, set()), found
    # A batch is read from end to end.
    assert found.full_scan_steps <= 2 * limit + 2, found
    assert found.steps <= 200 * limit + 300, found


def check_statement_for_flows_on_sqlite(sqlite: Crowd, name: str, limit: int) -> None:
    found = steps_of(sqlite, name, limit)
    few = FEW.get(name, set())
    assert not found.whole() - WALKED.get(name, set()) - few, found
    if not few:
        assert found.full_scan_steps <= 4 * limit + 4, found
        assert found.steps <= 1000 * limit + 1000, found


def check_move_on_sqlite(sqlite: Crowd, title: str, limit: int) -> None:
    for params, held in product(move_params(sqlite, title, limit), {False, title in UNSEEN}):
        move = sqlite.store.statements.move(hops_of(title), params, held)
        found = on_sqlite(sqlite.store, move, {**params, "event": FAR, "size": limit})
        assert not found.whole(), found
        assert found.steps <= 400 * limit + 300, found


def test_claims_on_sqlite_search_and_never_scan_or_sort(sqlite: Crowd) -> None:
    try_each(check_claim_on_sqlite, sqlite, CLAIMS, sizes())


def test_statements_on_sqlite_take_steps_for_what_they_are_asked_for(sqlite: Crowd) -> None:
    try_each(check_statement_on_sqlite, sqlite, OTHERS, sizes())


def test_statements_for_flows_on_sqlite_take_steps_for_what_they_are_asked_for(sqlite: Crowd) -> None:
    try_each(check_statement_for_flows_on_sqlite, sqlite, FOR_FLOWS, sizes())


def test_moves_on_sqlite_find_their_rows_by_key(sqlite: Crowd) -> None:
    try_each(check_move_on_sqlite, sqlite, MOVES, sizes())


UNSEEN = ("start, succeed", "succeed")
"""The moves that are also made without a look before."""


def hops_of(title: str) -> tuple[Transition, ...]:
    """The transitions of a move by its title: `start, succeed` of a task, `stage.open`."""
    parts = [name.rpartition(".") for name in title.split(", ")]
    return tuple(MACHINES[entity or TASK.entity].by_name[name] for entity, _, name in parts)


def move_params(crowd: Crowd, title: str, limit: int) -> list[dict[str, Any]]:
    """A batch with one value for all where the engine may give one, and one with a list for each column."""
    every = statements_for("sqlite").moves[title].columns
    first = hops_of(title)[0]
    was = first.sources[0]
    every += ("ns", "worker", "lease", "attempts") if title in UNSEEN else ()
    one = {c: 1 if TYPE_OF.get(c) in ("bigint", "integer") else "x" for c in every}
    # The time of a move is not before that of the last one.
    one |= {c: value for c, value in (("was", was), ("at", FAR), ("began", FAR)) if c in every}
    lists: dict[str, Any] = {c: [value] * limit for c, value in one.items()}
    keys = {"task": crowd.keys, "flow": crowd.flows, "stage": lambda n: [key + 1 for key in crowd.flows(n)]}
    # Flows and stages are looked up and not moved: events that are rolled back stay in the way at the log's end.
    keyed = {"key": keys[first.entity](limit), "version": [1 if first.entity == TASK.entity else 2] * limit}
    return [{**one, **keyed}, {**lists, **keyed}]


@pytest.fixture(scope="module")
def lone_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    url = f"sqlite:///{tmp_path_factory.mktemp('lone') / 'jobs.db'}"
    before = fill(url, 0)
    store = open_store(url)
    yield crowd_in(store, before)
    store.close()


@pytest.fixture(scope="module")
def lone_pg(postgres: Server) -> Iterator[Crowd]:
    with postgres.database() as url:
        before = fill(url, 0)
        store = open_store(url)
        yield crowd_in(store, before)
        store.close()


def test_what_cannot_be_claimed_does_not_make_a_claim_dearer_on_postgres(pg: Crowd, lone_pg: Crowd) -> None:
    for name in CLAIMS:
        beside, alone = (cost_of(crowd, name, 100, generic=False) for crowd in (pg, lone_pg))
        assert beside.buffers <= 1.5 * alone.buffers + 20, (name, beside, alone)
        assert beside.rows == alone.rows, name


def test_what_cannot_be_claimed_does_not_make_a_claim_dearer_on_sqlite(sqlite: Crowd, lone_sqlite: Crowd) -> None:
    for name in CLAIMS:
        beside, alone = (steps_of(crowd, name, 100) for crowd in (sqlite, lone_sqlite))
        assert beside.steps <= 1.5 * alone.steps, (name, beside, alone)
        assert beside.full_scan_steps == 0, name
