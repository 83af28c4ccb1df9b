"""The engine on a database: committer, janitor, feed, and the parts that read.

api.py has what every engine offers. Every transition goes through `Engine.run` or the janitor, and from there through
one function, `tx.move`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ParamSpec, TypeVar

from onetray.config import LEAST_RETENTION_S, EngineConfig
from onetray.domain import commands as c
from onetray.domain.checks import MAX_ROWS, listed, seconds, text, whole
from onetray.domain.clock import Clock
from onetray.domain.errors import Conflict, InvalidInput, Unavailable
from onetray.domain.flow_commands import SubmitDeclared
from onetray.domain.listing import Prunable
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment, Event, Verdict
from onetray.domain.verbs import command_of
from onetray.engine import janitor
from onetray.engine.api import EngineApi
from onetray.engine.audit_api import AuditApi
from onetray.engine.batch import run_batch
from onetray.engine.batch_context import BatchContext
from onetray.engine.bulk_api import BulkApi
from onetray.engine.bulk_steps import BulkSteps
from onetray.engine.caller_tx import submit_within
from onetray.engine.committer import Committer, Watcher
from onetray.engine.dead_letter_api import DeadLetterApi
from onetray.engine.declared_flow_api import DeclaredFlowApi
from onetray.engine.event_api import EventApi
from onetray.engine.flow_api import FlowApi
from onetray.engine.http_keys import HttpKeys
from onetray.engine.job_details import JobApi
from onetray.engine.kind_api import KindApi
from onetray.engine.limit_api import LimitApi
from onetray.engine.list_api import ListApi
from onetray.engine.overview_api import OverviewApi
from onetray.engine.past_api import PastApi
from onetray.engine.pending_writes import DEBOUNCED, RESCHEDULED
from onetray.engine.reads import ApiMethod
from onetray.engine.redacted import RedactedEngine
from onetray.engine.reserved_keys import used_with_another_body
from onetray.engine.retention import OldNotes, Retention, prune
from onetray.engine.schedule_api import ScheduleApi
from onetray.engine.schedule_reads import ScheduleReads
from onetray.engine.schedule_steps import ScheduleSteps
from onetray.engine.schedule_submits import ScheduleSubmits
from onetray.engine.statistics import StatisticsCounter
from onetray.engine.statistics_api import StatisticsApi
from onetray.engine.tally import Tally
from onetray.engine.task_api import TaskApi
from onetray.engine.token_api import Tokens
from onetray.engine.upkeep_api import UpkeepApi
from onetray.engine.worker_api import WorkerApi
from onetray.feed import Feed, event_of
from onetray.feed.listeners import Listeners, Subscription
from onetray.notify.wake import Wake
from onetray.redaction.job_secrets import JobRedaction
from onetray.store import open_store
from onetray.store.base import Store, Tx

P = ParamSpec("P")
R = TypeVar("R")


class Engine(EngineApi):
    """An engine on a database. Safe to use from any thread."""

    def __init__(
        self, store: Store, *, config: EngineConfig | None = None, seed: int | None = None, check: bool = True
    ) -> None:
        if check:
            store.check_version()
        self.store = store
        self.config = config or EngineConfig()
        self._rng = random.Random(seed)
        self.tally = Tally(store)
        committer = Committer(
            lambda commands: run_batch(
                store, commands, self._rng, self.config.names_ttl_s, self.config.limits, self.tally
            ),
            threads=self.config.committers or store.writers,
            chunk=self.config.chunk,
            patience_s=self.config.call_timeout_s,
            name="onetray-committer",
        )
        super().__init__(committer, Wake(store))
        self._watchers = committer.watchers
        self._janitors: list[janitor.Janitor] = []
        self.feed = Feed(store, self.wake)
        self._listeners = Listeners(self.feed)
        reads = store, self.config, committer.must_not_have_forked
        tasks, flows = TaskApi(*reads), FlowApi(*reads)
        self._lists, self._kinds = ListApi(flows), KindApi(*reads)
        self._declared = DeclaredFlowApi(self._kinds)
        self._letters = DeadLetterApi(flows)
        self._bulk = BulkApi(self._lists, self._letters)
        self._bulk.on_start.append(self._start_bulk_now)
        workers = WorkerApi(tasks, self.tally)
        self._schedules, schedules = ScheduleSteps(self._declared, self._rng), ScheduleReads(*reads)
        parts = (
            tasks, flows, self._lists, self._kinds, self._declared, workers, JobApi(tasks, flows),
            PastApi(tasks, flows), EventApi(*reads, feed=self.feed), UpkeepApi(*reads, new_batch=self._context),
            StatisticsApi(*reads), OverviewApi(workers), AuditApi(*reads), self._letters, self._bulk, LimitApi(*reads),
            schedules, ScheduleApi(self._schedules, schedules), ScheduleSubmits(self._schedules, schedules),
        )  # fmt: skip
        self._parts: dict[type | None, Any] = {type(part): part for part in parts}
        self.tokens = Tokens(*reads)
        self.http_keys = HttpKeys(store, self.config.limits)
        self.redaction = JobRedaction(store)

    @classmethod
    def open(
        cls, url: str, *, clock: Clock | None = None, seed: int | None = None, config: EngineConfig | None = None
    ) -> Engine:
        """Open an engine on a database: `sqlite:///jobs.db`, `sqlite://:memory:`, `postgresql://…`."""
        config = config or EngineConfig()
        options: dict[str, Any] = {"clock_skew_s": config.clock_skew_s}
        if str(url).startswith("postgres"):
            options = {"pooler": config.pooler, "patience_s": config.call_timeout_s}
        store = open_store(url, clock, **options)
        try:
            return cls(store, config=config, seed=seed)
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        for running in self._janitors:
            running.stop()
        self._committer.close()
        self.tally.write()
        self._listeners.close()
        self.wake.close()
        self.store.close()

    @cached_property
    def redacted(self) -> RedactedEngine:
        return RedactedEngine(self)

    def bind(self, method: ApiMethod[P, R]) -> Callable[P, R]:
        return self._parts[method.part].bind(method)  # type: ignore[no-any-return]

    def run(self, commands: Sequence[c.Command], *, connection: Any = None) -> list[Verdict]:
        if not _has_submit_by_name(commands):
            return super().run(commands, connection=connection)
        resolved, refused = self._declared.resolve(commands)
        verdicts = super().run(resolved, connection=connection)
        for i, verdict in refused.items():
            verdicts.insert(i, verdict)
        return verdicts

    def _submit_within(self, connection: object, commands: Sequence[c.Command]) -> list[Verdict]:
        self._committer.must_not_have_forked()
        if self.wake.closed:
            raise Unavailable("the engine is closed")
        return submit_within(self.store, connection, commands, self._rng, self.config)

    def undo_claim(self, claimed: Sequence[Assignment], reason: str) -> None:
        """Release claimed tasks that did not reach their worker. This costs no attempt and frees the request key."""
        leases = sorted({a.lease for a in claimed})
        self.store.write(lambda tx: tx.query("clear_request_keys", keys=leases))
        for verdict in self.run([c.Release(**c.ticket(a), reason=reason) for a in claimed]):
            if verdict.error is not None and not isinstance(verdict.error, Conflict):
                raise verdict.error

    def reserve_key(self, owner: str, key: str, *, route: str, body_hash: str, ttl_s: float) -> None:
        """Bind an owner's idempotency key to one request body. Raises KeyReused if it belongs to another one."""
        if not self.http_keys.reserve(owner, key, route=route, body_hash=body_hash, ttl_s=ttl_s):
            raise used_with_another_body(key)

    def on_batch(self, watcher: Watcher) -> None:
        """Call a function after each batch, with its commands, verdicts and duration in seconds.

        It runs in the writing thread, so it must be quick.
        """
        self._watchers.append(watcher)

    def declare_keeping_redaction(
        self, policies: Mapping[str, Policy], *, namespace: str = "default"
    ) -> dict[str, list[str]]:
        """See KindApi.declare_keeping_redaction."""
        return self._kinds.declare_keeping_redaction(policies, namespace=namespace)

    # Steps of the janitor, each bounded.

    def expire_leases(self, now: int | None = None, limit: int = janitor.BATCH) -> list[int]:
        """Return tasks with expired leases to their queues. Returns their keys."""
        whole(limit, "limit", 1, MAX_ROWS)
        if now is not None:
            whole(now, "now", 0, 2**62)
        return janitor.expire_leases(self.store, self._context, now, limit)

    def do_due(self, limit: int = janitor.BATCH) -> int:
        """Make due tasks claimable, time out late ones, end cancels whose grace period is over. Returns how many."""
        whole(limit, "limit", 1, MAX_ROWS)
        return janitor.do_due(self.store, self._context, limit)

    def fire_schedules(self, limit: int = janitor.BATCH) -> int:
        """Submit the jobs of schedules whose fire time has come. Returns how many schedules have changed."""
        whole(limit, "limit", 1, MAX_ROWS)
        return self._schedules.step(limit)

    def sweep(self) -> int:
        """One step of `expire_leases`, `do_due` and `fire_schedules`. Returns 0 if nothing was due."""
        try:
            expired = len(self.expire_leases())
        except Unavailable:
            raise
        except Exception:
            # Due rows must not wait for a lease that cannot be expired.
            self._sweep_due()
            raise
        return expired + self._sweep_due()

    def _sweep_due(self) -> int:
        try:
            done = self.do_due()
        except Unavailable:
            raise
        except Exception:
            self.fire_schedules()
            raise
        return done + self.fire_schedules()

    def prunable(self, older_than_s: float, *, namespace: str | None = None) -> Prunable:
        """How many jobs `prune` would remove now."""
        return self._lists.prunable(older_than_s, namespace=namespace)

    def prune(self, older_than_s: float, *, namespace: str | None = None, limit: int = janitor.BATCH) -> list[int]:
        """Delete up to `limit` whole jobs that ended at least `older_than_s` ago. Returns their keys."""
        seconds(older_than_s, "older_than_s")
        whole(limit, "limit", 1, MAX_ROWS)
        ns = None
        if namespace is not None:
            ns = self.store.names.namespace(text(namespace, "namespace", self.config.limits.name_chars))
            if ns is None:
                return []
        return prune(self.store, older_than_s, ns, limit)

    def prune_notes(self, types: Sequence[str], older_than_s: float) -> None:
        """Delete old notes of these types. Events of transitions are deleted only with their job."""
        seconds(older_than_s, "older_than_s")
        for name in listed(types, "types", 1, 1_000):
            text(name, "types", self.config.limits.name_chars)
        _check_prunable(types)

        old = OldNotes(self.store, types, older_than_s)
        while old.remove():
            pass

    def janitor(
        self, every_s: float = 1.0, *, retention_s: float | None = None, namespace: str | None = None
    ) -> janitor.Janitor:
        """A thread that sweeps whenever something is due. Call its `start`; closing the engine stops it.

        It also carries out bulk operations, counts events for `statistics`, and deletes notes after their TTL. With
        `retention_s` it deletes jobs, too, of one namespace or of all, that long after their end.
        """
        retention = None if retention_s is None else self.retention(retention_s, namespace=namespace)
        notes = OldNotes(self.store, _check_prunable(self.config.note_types), self.config.note_ttl_s)
        due, statistics = janitor.DueTimes(self.store), StatisticsCounter(self.store)

        def sweep() -> int:
            return self.sweep() + notes.step() + self.tally.step() + statistics.step()

        new = janitor.Janitor(sweep, due.next_in_s, every_s, retention, self.store.outage, self.bulk_steps())
        self.wake.on_due.append(lambda at: new.sweep_within(due.in_s(at)))
        self._janitors.append(new)
        return new

    def bulk_steps(self) -> BulkSteps:
        """Carries out bulk operations step by step, for a loop of your own. The janitor has one."""
        return BulkSteps(self._lists, self._letters, self._rng)

    @property
    def has_janitor(self) -> bool:
        """Whether this engine has a janitor of its own. Another process may have one, too."""
        return bool(self._janitors)

    def retention(self, keep_s: float, *, namespace: str | None = None) -> Retention:
        """Deletes old jobs step by step, for a loop of your own. The janitor has one."""
        seconds(keep_s, "retention_s", LEAST_RETENTION_S)
        if namespace is None:
            return Retention(self.store, keep_s)
        text(namespace, "namespace", self.config.limits.name_chars)
        return Retention(self.store, keep_s, lambda: self.store.names.namespace(namespace))

    def _start_bulk_now(self) -> None:
        for running in self._janitors:
            running.start_bulk_now()

    def _context(self, tx: Tx, size: int) -> BatchContext:
        return BatchContext(tx, size, self._rng, self.config.limits)

    def on_event(
        self, listener: Callable[[Event], object], *, after: int | None = None, namespace: str | None = None
    ) -> Subscription:
        """Call a function for every committed event, in order, from now on or from a cursor."""
        return self._listeners.add(listener, after, namespace)


def _check_prunable(types: Sequence[str]) -> Sequence[str]:
    for type_ in (RESCHEDULED, DEBOUNCED):
        if type_ in types:
            raise InvalidInput(f"{type_} cannot be pruned: it records when a task was allowed to run", field="types")
    return types


def _has_submit_by_name(commands: object) -> bool:
    # At the speed of C: every command of the process comes by.
    return isinstance(commands, Sequence) and SubmitDeclared in map(type, commands)


__all__ = ["Engine", "command_of", "event_of"]
