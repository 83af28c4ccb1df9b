"""Start, read, stop and resume bulk operations. bulk_steps.py carries them out.

Owns which filters and options each action takes, and the events that record who has started and stopped what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import orjson
from uuid_utils import uuid7

from onetray.domain.bulk import (
    ACTIONS,
    DEFAULT_STATES,
    JOB_FILTERS,
    LETTER_FILTERS,
    MAX_CANARY,
    PAUSED,
    PRIORITY,
    REDRIVE,
    RUNNING,
    STOPPED,
    BulkOperation,
    BulkOptions,
    BulkPreview,
    Refusal,
)
from onetray.domain.checks import FAR_US, choice, flag, optional_text, seconds, task_id, text, whole
from onetray.domain.errors import IllegalTransition, InvalidInput, NotFound
from onetray.domain.lifecycle import BULK_RESUMED, BULK_STARTED, BULK_STOPPED
from onetray.domain.machine import USER
from onetray.domain.token import OPERATE, READ
from onetray.engine.bulk_steps import record_end
from onetray.engine.dead_letter_api import DeadLetterApi
from onetray.engine.list_api import ListApi
from onetray.engine.list_scan import walk_jobs
from onetray.engine.pending_writes import actor, record_change
from onetray.engine.reads import DatabaseReads, act, act_for, read
from onetray.redaction.answers import of_preview, plain
from onetray.store.base import Tx
from onetray.store.shown_rows import BulkRow

KEPT = 1_000
"""How many operations of a namespace are kept; the oldest finished ones go."""
COUNTED = 10_000
"""A preview counts at most so many dead letters."""
PREVIEW_S = 0.05
"""How long a preview searches for the first jobs."""
FILTERS_BYTES = 65_536


class BulkApi(DatabaseReads):
    """The engine's bulk operations, on a database."""

    def __init__(self, lists: ListApi, letters: DeadLetterApi) -> None:
        super().__init__(lists.store, lists.config, lists.must_not_have_forked)
        self._lists, self._letters = lists, letters
        self.on_start: list[Callable[[], None]] = []
        """Called when an operation has been started or resumed here."""

    @read(of_preview)
    def preview_bulk(
        self, action: str, filters: Mapping[str, Any] | None = None, *, limit: int = 10, namespace: str = "default"
    ) -> BulkPreview:
        """What a bulk operation with these filters would act on now: how many, at least, and the first ones."""
        checked = self._filters(action, filters or {}, namespace)
        whole(limit, "limit", 1, 100)
        if action == REDRIVE:
            letters = self._letters.dead_lines(**checked, limit=limit, namespace=namespace)
            number = self._letters.count_letters(COUNTED + 1, **checked, namespace=namespace)
            return BulkPreview(min(number, COUNTED), number > COUNTED, [], letters)
        checked["states"] = checked.get("states") or DEFAULT_STATES[action]
        counts = self._lists.count_by_state(**checked, namespace=namespace)
        jobs, _ = walk_jobs(self._lists, namespace, None, limit, within_s=PREVIEW_S, **checked)
        return BulkPreview(max(sum(counts.states.values()), len(jobs)), not counts.is_complete, jobs, [])

    @act_for(OPERATE, filters=READ)
    def start_bulk(
        self,
        action: str,
        filters: Mapping[str, Any] | None = None,
        *,
        priority: int | None = None,
        hard: bool = False,
        delay_s: float = 0.0,
        keep_attempts: bool = False,
        limit: int | None = None,
        canary: int | None = None,
        reason: str | None = None,
        by: str = "anonymous",
        namespace: str = "default",
    ) -> BulkOperation:
        """Start an action on all jobs that match: `cancel`, `retry`, `redrive` or `priority`. Janitors carry it out.

        The filters of `redrive` are those of `dead_lines`: kind, reason, error, queue, kinds, flow, alike, ids. The
        other actions take those of `jobs`: states, kind, queue, correlation_id, labels, entity, priority, since, until,
        text, ids. Without `states`, a cancel and a change of priority take open jobs, a retry those that have ended
        without success. Jobs that are submitted from now on are not meant, nor dead letters that are set aside.

        At most `limit` jobs are changed. With `canary`, a redrive pauses after that many dead letters: see how their
        new tasks do in `bulk`, then call `resume_bulk` or `stop_bulk`. `filters` also need the scope `read`.
        """
        checked = self._filters(action, filters or {}, namespace)
        options = self._options(action, priority, hard, delay_s, keep_attempts)
        if canary is not None and action != REDRIVE:
            raise InvalidInput("only a redrive has a canary: leave it out", field="canary")
        text(by, "by", self.config.limits.name_chars)
        optional_text(reason, "reason", self.config.limits.reason_chars)
        ns = self.store.names.intern_namespace(text(namespace, "namespace", self.config.limits.name_chars))
        values = {
            "id": str(uuid7()), "ns": ns, "action": action, "filters": _json(checked), "options": _json(options),
            "reason": reason, "state": RUNNING, "by": by,
            "most": None if limit is None else whole(limit, "limit", 1, FAR_US),
            "canary": None if canary is None else whole(canary, "canary", 1, MAX_CANARY),
            "place": 0 if action == REDRIVE else self._newest_key() + 1,
        }  # fmt: skip

        def add(tx: Tx) -> None:
            if tx.query("insert_bulk", at=tx.now, **values):
                tx.query("prune_bulks", ns=ns, keep=KEPT)
                record_change(
                    tx, ns, BULK_STARTED, actor(USER, by), reason, about=("bulk", str(values["id"])), action=action,
                    filters=checked or None, limit=limit, canary=canary,
                )  # fmt: skip

        self.store.write(add)
        self._wake()
        return self.bulk(str(values["id"]), namespace=namespace)

    @read(plain)
    def bulk(self, id: str, *, namespace: str = "default") -> BulkOperation:
        """A bulk operation: how far it is, and how the tasks of its canary do."""
        return self._operation(self._row(id, namespace), watch=True)

    @read(plain)
    def bulks(self, *, unfinished: bool = False, limit: int = 100, namespace: str = "default") -> list[BulkOperation]:
        """The bulk operations of a namespace, newest first; with `unfinished`, those that run or are paused."""
        rows: list[BulkRow] = self._read(
            "list_bulks", unfinished=int(flag(unfinished, "unfinished")), limit=limit, namespace=namespace
        )
        return [self._operation(row) for row in rows]

    @act
    def resume_bulk(
        self, id: str, *, reason: str | None = None, by: str = "anonymous", namespace: str = "default"
    ) -> BulkOperation:
        """Continue an operation that is paused after its canary."""
        return self._change(id, RUNNING, (PAUSED,), "resume", reason, by, namespace)

    @act
    def stop_bulk(
        self, id: str, *, reason: str | None = None, by: str = "anonymous", namespace: str = "default"
    ) -> BulkOperation:
        """End an operation early. What it has done so far stays done."""
        return self._change(id, STOPPED, (RUNNING, PAUSED), "stop", reason, by, namespace)

    def _change(
        self, id_: str, state: str, sources: tuple[str, ...], verb: str, reason: str | None, by: str, namespace: str
    ) -> BulkOperation:
        text(by, "by", self.config.limits.name_chars)
        optional_text(reason, "reason", self.config.limits.reason_chars)
        found = self._row(id_, namespace)

        def change(tx: Tx) -> None:
            for row in tx.query("wait_for_bulk", id=found.id, ns=found.ns):
                if row.state == state:
                    return
                if row.state not in sources:
                    raise IllegalTransition(
                        f"a bulk operation that is {row.state} cannot {verb}: only one that is {' or '.join(sources)}",
                        **{"from": row.state, "attempted": verb, "allowed": _allowed(row.state)},
                    )
                is_over = state == STOPPED
                tx.query("set_bulk_state", id=row.id, state=state, at=tx.now, finished_at=tx.now if is_over else None)
                record_end(tx, row, BULK_STOPPED if is_over else BULK_RESUMED, actor(USER, by), reason=reason)

        self.store.write(change)
        self._wake()
        return self.bulk(found.id, namespace=namespace)

    def _wake(self) -> None:
        for wake in self.on_start:
            wake()

    def _row(self, id_: str, namespace: str) -> BulkRow:
        rows: list[BulkRow] = self._read("bulk_by_id", id=task_id(id_, "id"), namespace=namespace)
        if not rows:
            raise NotFound(f"there is no bulk operation {id_} in the namespace {namespace}", bulk=id_)
        return rows[0]

    def _operation(self, row: BulkRow, watch: bool = False) -> BulkOperation:
        canary_ids: list[str] = orjson.loads(row.canary_ids)
        states: dict[str, int] = {}
        if watch and canary_ids:
            states = dict(Counter(s for (s,) in self.store.read("states_of_tasks", ids=canary_ids)))
        return BulkOperation(
            row.id, row.namespace, row.action, orjson.loads(row.filters), BulkOptions(**orjson.loads(row.options)),
            row.reason, row.state, row.created_at, row.created_by, row.updated_at, row.finished_at, row.most,
            row.canary, row.done, row.repeated, row.refused, row.skipped,
            [Refusal(**refusal) for refusal in orjson.loads(row.refusals)], canary_ids, states,
        )  # fmt: skip

    def _newest_key(self) -> int:
        return next((key for key, _ in self.store.read("newest_before", upto=FAR_US)), 0)

    def _filters(self, action: str, filters: Mapping[str, Any], namespace: str) -> dict[str, Any]:
        """The filters without empty ones, after a check by the list that will use them."""
        known = LETTER_FILTERS if choice(action, "action", ACTIONS) == REDRIVE else JOB_FILTERS
        if not isinstance(filters, Mapping):
            raise InvalidInput(f"filters must be a mapping, not {type(filters).__name__}", field="filters")
        for name in filters:
            if name not in known:
                near = get_close_matches(str(name), known, 1)
                hint = f"do you mean {near[0]!r}?" if near else f"{action} takes {', '.join(known)}"
                raise InvalidInput(f"{str(name)[:40]!r} is no filter of {action}: {hint}", field="filters")
        wanted = {name: value for name, value in filters.items() if value not in (None, [], (), {}, "")}
        if action == REDRIVE:
            self._letters.dead_lines(**wanted, limit=1, namespace=namespace)
        else:
            self._lists.jobs(**wanted, limit=1, namespace=namespace)
        if len(_json(wanted)) > FILTERS_BYTES:
            raise InvalidInput(f"filters must have at most {FILTERS_BYTES:,} bytes: name fewer ids", field="filters")
        return wanted

    def _options(
        self, action: str, priority: int | None, hard: bool, delay_s: float, keep_attempts: bool
    ) -> BulkOptions:
        if (action == PRIORITY) != (priority is not None):
            raise InvalidInput(
                f"{action} takes no priority: leave it out" if action != PRIORITY else "pass the priority to set",
                field="priority",
            )
        if priority is not None:
            whole(priority, "priority", -(2**31) + 1, 2**31 - 1)
        seconds(delay_s, "delay_s")
        return BulkOptions(flag(hard, "hard"), priority, delay_s, flag(keep_attempts, "keep_attempts"))


def _allowed(state: str) -> list[str]:
    return {RUNNING: ["stop"], PAUSED: ["resume", "stop"]}.get(state, [])


def _json(value: Any) -> str:
    return orjson.dumps(value, default=list).decode()
