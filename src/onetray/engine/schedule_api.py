"""Define, pause and remove schedules. schedule_steps.py fires them.

Owns who may change a schedule: a person those that are data, an app those in its code. Of two versions of an app beside
each other, the instance that started last defines a schedule, until nobody has declared its version for ORPHAN_S.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onetray.domain.checks import flag, listed, text
from onetray.domain.clock import SECOND, utc_text
from onetray.domain.errors import DeclaredInCode, InvalidInput
from onetray.domain.lifecycle import (
    SCHEDULE_CHANGED,
    SCHEDULE_CREATED,
    SCHEDULE_ORPHANED,
    SCHEDULE_PAUSED,
    SCHEDULE_REMOVED,
    SCHEDULE_RESUMED,
)
from onetray.domain.machine import USER, WORKER
from onetray.domain.schedule import (
    ALLOW,
    CODE,
    LAST,
    MAX_SCHEDULES,
    OPERATOR,
    Schedule,
    ScheduleSpec,
    spec_of,
    version_of_spec,
)
from onetray.domain.token import OPERATE, SUBMIT
from onetray.engine.pending_writes import actor
from onetray.engine.reads import act, act_showing, own_route
from onetray.engine.schedule_fires import record_schedule
from onetray.engine.schedule_reads import ScheduleReads
from onetray.engine.schedule_steps import ScheduleSteps
from onetray.redaction.answers import without_payload
from onetray.store.base import Tx
from onetray.store.shown_rows import ScheduleRow

ORPHAN_S = 600.0
"""A schedule that no instance of its app has declared for so long is orphaned, if an instance declares others."""
RENEW_S = 50.0
"""How old `seen_at` may become before a declaration writes it again."""


class ScheduleApi(ScheduleReads):
    """The engine's definitions of schedules, on a database."""

    def __init__(self, steps: ScheduleSteps, reads: ScheduleReads) -> None:
        super().__init__(reads.store, reads.config, reads.must_not_have_forked)
        self._steps = steps

    @act_showing(without_payload, OPERATE, kind=SUBMIT, flow=SUBMIT)
    def put_schedule(
        self,
        name: str,
        *,
        kind: str | None = None,
        flow: str | None = None,
        payload: Any = None,
        cron: str | None = None,
        every_s: float | None = None,
        timezone: str = "UTC",
        queue: str = "default",
        priority: int = 0,
        max_attempts: int | None = None,
        labels: Mapping[str, str] | None = None,
        catch_up: str = LAST,
        catch_up_s: float = 86_400.0,
        overlap: str = ALLOW,
        jitter_s: float = 0.0,
        starts_at: int | None = None,
        ends_at: int | None = None,
        pause_after_failures: int | None = None,
        reason: str | None = None,
        by: str = "anonymous",
        namespace: str = "default",
    ) -> Schedule:
        """Create a schedule, or change all of it: see ScheduleSpec for its fields. Needs the scope `submit`, too.

        Changing the expression changes the next fire time: fire times of the old one that have come are handled first,
        so none is lost, and none is repeated.
        """
        spec = ScheduleSpec(
            name=name, kind=kind, flow=flow, payload=payload, cron=cron, every_s=every_s, timezone=timezone,
            queue=queue, priority=priority, max_attempts=max_attempts,
            labels=dict(labels) if isinstance(labels, Mapping) else labels, catch_up=catch_up, catch_up_s=catch_up_s,
            overlap=overlap, jitter_s=jitter_s, starts_at=starts_at, ends_at=ends_at,
            pause_after_failures=pause_after_failures,
        )  # fmt: skip
        self._check_acting(reason, by)
        spec.check(self.config.limits)
        ns = self.store.names.intern_namespace(text(namespace, "namespace", self.config.limits.name_chars))
        while not self.store.write(lambda tx: self._put(tx, ns, spec, reason, by)):
            self._catch_up(name, namespace)
        return self.schedule(name, namespace=namespace)

    def _put(self, tx: Tx, ns: int, spec: ScheduleSpec, reason: str | None, by: str) -> bool:
        """Returns False if it has to be done again: fire times of the old definition have to be handled first."""
        rows: list[ScheduleRow] = tx.query("wait_for_schedule", ns=ns, schedule=spec.name)
        if not rows:
            return self._insert(tx, ns, spec, OPERATOR, None, actor(USER, by), reason)
        (row,) = rows
        if row.source == CODE:
            raise DeclaredInCode(
                f"the schedule {row.name} is in the code of the app {row.app}: change it there, or pause it here",
                schedule=row.name, app=row.app,
            )  # fmt: skip
        return self._define(tx, row, spec, actor(USER, by), reason)

    def _insert(
        self, tx: Tx, ns: int, spec: ScheduleSpec, source: str, app: str | None, by: str, reason: str | None = None
    ) -> bool:
        """Returns False if another transaction has added one of this name."""
        ((number,),) = tx.query("count_schedules", ns=ns)
        if number >= MAX_SCHEDULES:
            raise InvalidInput(f"a namespace has at most {MAX_SCHEDULES:,} schedules: remove one first", field="name")
        next_fire_at = _next_fire(spec, tx.now, source)
        added = tx.query(
            "insert_schedule", key=tx.new_keys(1)[0], ns=ns, schedule=spec.name, body=spec.body,
            version=version_of_spec(spec), source=source, app=app, next_fire_at=next_fire_at,
            look_at=_look(spec, next_fire_at), seen_at=tx.now if app is not None else None, at=tx.now, by=by,
        )  # fmt: skip
        if added:
            record_schedule(tx, ns, spec.name, SCHEDULE_CREATED, by, reason, **_facts(spec))
        return bool(added)

    def _define(self, tx: Tx, row: ScheduleRow, spec: ScheduleSpec, by: str, reason: str | None = None) -> bool:
        """Change a definition. Returns False if fire times of the old one have to be handled first."""
        if row.version == version_of_spec(spec):
            return True
        if row.look_at is not None and row.look_at <= tx.now:
            return False
        next_fire_at, look_at = row.next_fire_at, row.look_at
        # A fire time that has come, and waits for its jitter, is kept.
        has_come = next_fire_at is not None and next_fire_at <= tx.now
        if row.paused_at is None and not has_come and spec_of(row.body).calendar != spec.calendar:
            next_fire_at = _next_fire(spec, max(tx.now, row.last_fire_at or 0), row.source)
            look_at = _look(spec, next_fire_at)
        tx.query(
            "define_schedule", key=row.key, body=spec.body, version=version_of_spec(spec), next_fire_at=next_fire_at,
            look_at=look_at, seen_at=None if row.app is None else tx.now, at=tx.now,
        )  # fmt: skip
        record_schedule(tx, row.ns, row.name, SCHEDULE_CHANGED, by, reason, **_facts(spec))
        return True

    def _catch_up(self, name: str, namespace: str) -> None:
        """Handle the fire times that have come."""
        for row in self.store.read("schedule_by_name", schedule=name, namespace=namespace):
            self._steps.look(row)

    @own_route
    def declare_schedules(
        self,
        schedules: Sequence[ScheduleSpec],
        *,
        app: str = "default",
        worker: str = "anonymous",
        renew: bool = False,
        namespace: str = "default",
    ) -> list[str]:
        """Declare all schedules in the code of an app. Returns the names that are refused: a person has added them.

        Without `renew`, from an instance that starts, the definitions replace earlier ones. With it, from one that
        runs, they only say that they are still in use, unless nobody has declared the others for ORPHAN_S. Schedules of
        the app that no instance has declared for as long are orphaned: shown, and not fired.
        """
        limits = self.config.limits
        for name, value in (("app", app), ("worker", worker), ("namespace", namespace)):
            text(value, name, limits.name_chars)
        flag(renew, "renew")
        declared: dict[str, ScheduleSpec] = {}
        for spec in listed(schedules, "schedules", 0, MAX_SCHEDULES):
            if not isinstance(spec, ScheduleSpec):
                raise InvalidInput(f"schedules must have ScheduleSpecs, not {type(spec).__name__}", field="schedules")
            spec.check(limits)
            declared[spec.name] = spec
        ns = self.store.names.namespace(namespace)
        known = [] if ns is None else self.store.read("schedules_of_app", ns=ns, app=app)
        if not declared and not known:
            return []
        ns = self.store.names.intern_namespace(namespace)
        by = actor(WORKER, worker)
        refused = [name for name, spec in declared.items() if not self._declare(ns, namespace, spec, app, by, renew)]
        if any(row.name not in declared and row.orphaned_at is None for row in known):
            self.store.write(lambda tx: self._orphan(tx, ns, app, declared, by))
        return refused

    def _declare(self, ns: int, namespace: str, spec: ScheduleSpec, app: str, by: str, renew: bool) -> bool:
        """Declare one schedule. Returns False if a person has added one of this name."""
        while True:
            rows: list[ScheduleRow] = self.store.read("schedule_by_name", schedule=spec.name, namespace=namespace)
            if rows and rows[0].source != CODE:
                return False
            if rows and self._is_fresh(rows[0], spec, app, renew):
                return True
            if self.store.write(lambda tx: self._see(tx, ns, spec, app, by, renew)):
                return True
            self._catch_up(spec.name, namespace)

    def _is_fresh(self, row: ScheduleRow, spec: ScheduleSpec, app: str, renew: bool) -> bool:
        """Whether nothing need be written."""
        is_same = row.version == version_of_spec(spec)
        seen_at = row.version_seen_at if is_same else row.seen_at
        is_recent = self.store.now() - (seen_at or 0) < RENEW_S * SECOND
        is_replaced = not is_same and (not renew or self._is_abandoned(row, self.store.now()))
        return row.orphaned_at is None and is_recent and not is_replaced and row.app == app

    def _is_abandoned(self, row: ScheduleRow, now: int) -> bool:
        """Whether no instance has the current version any more."""
        return now - (row.version_seen_at or 0) > ORPHAN_S * SECOND

    def _see(self, tx: Tx, ns: int, spec: ScheduleSpec, app: str, by: str, renew: bool) -> bool:
        rows: list[ScheduleRow] = tx.query("wait_for_schedule", ns=ns, schedule=spec.name)
        if not rows:
            return self._insert(tx, ns, spec, CODE, app, by)
        (row,) = rows
        if row.source != CODE:
            return True
        look_at = row.look_at
        if row.orphaned_at is not None and row.paused_at is None:
            look_at = _look(spec_of(row.body), row.next_fire_at)
        version = version_of_spec(spec)
        tx.query("see_schedule", key=row.key, at=tx.now, version=version, look_at=look_at, app=app)
        if row.version == version or (renew and not self._is_abandoned(row, tx.now)):
            return True
        return self._define(tx, row._replace(look_at=look_at, orphaned_at=None), spec, by)

    def _orphan(self, tx: Tx, ns: int, app: str, declared: Mapping[str, ScheduleSpec], by: str) -> None:
        for row in tx.query("schedules_of_app", ns=ns, app=app):
            is_old = tx.now - (row.seen_at or 0) > ORPHAN_S * SECOND
            if row.name not in declared and row.orphaned_at is None and is_old:
                tx.query("orphan_schedule", key=row.key, at=tx.now)
                why = f"no instance of the app {app} has declared it since {utc_text(row.seen_at or 0)}"
                record_schedule(tx, ns, row.name, SCHEDULE_ORPHANED, by, why, app=app)

    @act_showing(without_payload)
    def pause_schedule(
        self, name: str, *, reason: str | None = None, by: str = "anonymous", namespace: str = "default"
    ) -> Schedule:
        """Stop a schedule: it does not fire until it is resumed. Jobs that it has submitted continue."""

        def pause(tx: Tx, row: ScheduleRow) -> None:
            if row.paused_at is None:
                who = actor(USER, by)
                tx.query("pause_schedule", key=row.key, at=tx.now, by=who, why=reason, failures=row.failures)
                record_schedule(tx, row.ns, name, SCHEDULE_PAUSED, who, reason)

        return self._change(name, namespace, reason, by, pause)

    @act_showing(without_payload)
    def resume_schedule(
        self, name: str, *, reason: str | None = None, by: str = "anonymous", namespace: str = "default"
    ) -> Schedule:
        """Let a paused schedule fire again, from now on: fire times of the pause are not caught up. See backfill."""

        def resume(tx: Tx, row: ScheduleRow) -> None:
            if row.paused_at is not None:
                spec = spec_of(row.body)
                next_fire_at = spec.calendar.next_after(max(tx.now, row.last_fire_at or 0))
                look_at = None if row.orphaned_at is not None else _look(spec, next_fire_at)
                if row.orphaned_at is None and tx.query("open_fires", key=row.key, limit=1):
                    # A queued fire may have its turn now.
                    look_at = tx.now
                tx.query("resume_schedule", key=row.key, next_fire_at=next_fire_at, look_at=look_at, at=tx.now)
                record_schedule(tx, row.ns, name, SCHEDULE_RESUMED, actor(USER, by), reason)

        return self._change(name, namespace, reason, by, resume)

    @act
    def remove_schedule(
        self, name: str, *, reason: str | None = None, by: str = "anonymous", namespace: str = "default"
    ) -> None:
        """Delete a schedule and its history. Its jobs stay. An app that still has it declares it again."""
        self._check_acting(reason, by)
        found = self._row(name, namespace)

        def remove(tx: Tx) -> None:
            for row in tx.query("wait_for_schedule", ns=found.ns, schedule=name):
                if row.key == found.key:
                    tx.query("delete_fires", key=row.key)
                    tx.query("delete_schedule", key=row.key)
                    record_schedule(tx, row.ns, name, SCHEDULE_REMOVED, actor(USER, by), reason)

        self.store.write(remove)

    def _change(
        self, name: str, namespace: str, reason: str | None, by: str, change: Callable[[Tx, ScheduleRow], None]
    ) -> Schedule:
        self._check_acting(reason, by)
        found = self._row(name, namespace)

        def apply(tx: Tx) -> None:
            for row in tx.query("wait_for_schedule", ns=found.ns, schedule=name):
                change(tx, row)

        self.store.write(apply)
        return self.schedule(name, namespace=namespace)


def _next_fire(spec: ScheduleSpec, after: int, source: str) -> int | None:
    """Raises InvalidInput if there is none. One in code may have ended: the others of its app must fire."""
    next_fire_at = spec.calendar.next_after(after)
    if next_fire_at is None and source == OPERATOR:
        raise InvalidInput("the schedule would never fire: change cron or ends_at", field="cron")
    return next_fire_at


def _look(spec: ScheduleSpec, next_fire_at: int | None) -> int | None:
    return None if next_fire_at is None else next_fire_at + spec.delay_us(next_fire_at)


def _facts(spec: ScheduleSpec) -> dict[str, Any]:
    """What the log tells about a definition: not its payload, which may hold secrets."""
    return {"cron": spec.cron, "every_s": spec.every_s, "timezone": spec.timezone, "kind": spec.kind, "flow": spec.flow}
