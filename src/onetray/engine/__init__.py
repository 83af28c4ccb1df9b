"""The engine: verbs that take batches of commands and answer each one.

Owns the public face of the core: commands in, verdicts out, reads beside. Every change of state goes through
`Engine.run`, and from there through the one door, `tx.move`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from typing import Any, ClassVar

from onetray.config import LEAST_RETENTION_S, EngineConfig
from onetray.domain import commands as c
from onetray.domain.checks import MOST_ROWS, choice, id_or_none, listed, seconds, task_id, text, whole
from onetray.domain.clock import SECOND, Clock
from onetray.domain.errors import Conflict, InvalidInput, NotFound, OnetrayError, TooLarge, Unavailable
from onetray.domain.flow import More
from onetray.domain.machine import ACTORS, USER
from onetray.domain.policy import Policy
from onetray.domain.system_commands import DeadLetterIt
from onetray.domain.task import Assignment, Blocker, DeadLetter, Event, LogLine, Receipt, Task, Verdict, json_of
from onetray.domain.verbs import check_command, command_of
from onetray.engine import janitor
from onetray.engine.batch import carry_out
from onetray.engine.batch_context import BatchContext
from onetray.engine.caller_tx import must_be_submits, submit_within
from onetray.engine.committer import Carrier, Committer, Watcher
from onetray.engine.flow_api import FlowApi, task_of_row
from onetray.engine.http_keys import HttpKeyApi
from onetray.engine.list_api import ListApi
from onetray.engine.pending_writes import RESCHEDULED
from onetray.engine.piggyback import Piggyback, PiggybackClaim
from onetray.engine.retention import Retention, prune
from onetray.engine.token_api import TokenApi
from onetray.engine.worker_api import WorkerApi, receipt, ticket_of
from onetray.explain.tasks import explain, position
from onetray.feed import Feed, event_of
from onetray.feed.listeners import Listeners, Subscription
from onetray.notify.wake import Wake
from onetray.redaction.job_secrets import JobRedaction
from onetray.store import open_store
from onetray.store.base import Rows, Store, Tx

_MORE = tuple(field.name for field in dataclass_fields(More))


class Engine(FlowApi, WorkerApi, HttpKeyApi, TokenApi, JobRedaction, ListApi):
    """One database, one set of verbs. Safe to use from any thread."""

    is_remote: ClassVar[bool] = False
    """Whether it is a server that has the database: see remote/engine.py."""

    def __init__(
        self, store: Store, *, config: EngineConfig | None = None, seed: int | None = None, check: bool = True
    ) -> None:
        if check:
            store.check_version()
        self.store = store
        self.config = config or EngineConfig()
        self._chance = random.Random(seed)
        self._committer: Carrier = Committer(
            lambda commands: carry_out(store, commands, self._chance, self.config.names_ttl_s, self.config.limits),
            threads=self.config.committers or store.writers,
            chunk=self.config.chunk,
            patience_s=self.config.call_timeout_s,
            name="onetray-committer",
        )
        self.rides = Piggyback()
        self._janitors: list[janitor.Janitor] = []
        self.wake = Wake(store)
        self.feed = Feed(store, self.wake)
        self._listeners = Listeners(self.feed)

    @classmethod
    def open(
        cls, url: str, *, clock: Clock | None = None, seed: int | None = None, config: EngineConfig | None = None
    ) -> Engine:
        """Open the database that a URL names: `sqlite:///jobs.db`, `sqlite://:memory:`, `postgresql://…`."""
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
        for started in self._janitors:
            started.stop()
        self._committer.close()
        self._listeners.close()
        self.wake.close()
        self.store.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, commands: Sequence[c.Command], *, connection: Any = None) -> list[Verdict]:
        """Carry out commands, in as few transactions as fit, and answer each in its place.

        With a psycopg connection of yours: inside its transaction. Then they may only be submits.
        """
        limits = self.config.limits
        if not isinstance(commands, Sequence):
            raise InvalidInput(f"commands must be a list, not {type(commands).__name__}", field="commands")
        if len(commands) > limits.batch:
            raise TooLarge(
                f"a batch has at most {limits.batch} commands, not {len(commands)}", field="batch", limit=limits.batch
            )
        if connection is not None:
            must_be_submits(commands)
        refused: dict[int, Verdict] = {}
        for i, command in enumerate(commands):
            try:
                check_command(command, limits)
            except OnetrayError as e:
                refused[i] = Verdict(error=e)
        good = [c for i, c in enumerate(commands) if i not in refused] if refused else commands
        verdicts = self._commit(good) if connection is None else self._submit_within(connection, good)
        for i, verdict in refused.items():
            verdicts.insert(i, verdict)
        return verdicts

    def _commit(self, commands: Sequence[c.Command]) -> list[Verdict]:
        chunk = self.config.chunk
        verdicts: list[Verdict] = []
        for start in range(0, len(commands), chunk):
            some = commands[start : start + chunk]
            ride = self.rides.take(some) if self.rides else None
            verdicts += self._committer.carry_out(some) if ride is None else self._with(ride, some)
        return verdicts

    def _with(self, ride: PiggybackClaim, commands: Sequence[c.Command]) -> list[Verdict]:
        """Carry out commands, and the claim that a worker has them take along."""
        answer = Verdict(error=Unavailable("the claim was not carried out"))
        try:
            *verdicts, answer = self._committer.carry_out([*commands, ride.claim])
            return verdicts
        finally:
            ride.rider.arrive(ride, answer)

    def _submit_within(self, connection: object, commands: Sequence[c.Command]) -> list[Verdict]:
        self._committer.must_not_have_forked()
        if self.wake.closed:
            raise Unavailable("the engine is closed")
        return submit_within(self.store, connection, commands, self._chance, self.config)

    def call(self, command: c.Command, *, connection: Any = None) -> Any:
        """Carry out one command: its value, or its error raised."""
        return self.run([command], connection=connection)[0].unwrap()

    def do(self, verb: str, **fields: Any) -> Any:
        """Carry out a command by the name of its verb."""
        return self.call(command_of(verb, fields))

    def on_batch(self, watcher: Watcher) -> None:
        """Have a function called with each batch of commands that was carried out, and how long that took.

        In the thread that wrote it: it must be quick.
        """
        if isinstance(self._committer, Committer):
            self._committer.watchers.append(watcher)

    # The verbs, one call each. Many at once: `run`.

    def submit(self, kind: str, payload: Any = None, *, connection: Any = None, **fields: Any) -> Receipt:
        """Submit a task. With a psycopg connection of yours: it exists exactly when your transaction commits."""
        return receipt(self.call(c.Submit(kind=kind, payload=payload, **fields), connection=connection))

    def claim(self, queue: str = "default", *, worker: str, limit: int = 1, **fields: Any) -> list[Assignment]:
        claimed: list[Assignment] = self.call(c.Claim(queue=queue, worker=worker, limit=limit, **fields))
        return claimed

    def undo_claim(self, claimed: Sequence[Assignment], reason: str) -> None:
        """Give back what was claimed for somebody who has not heard of it. It costs no attempt, and the claim's key is
        free again."""
        leases = sorted({a.lease for a in claimed})
        self.store.write(lambda tx: tx.query("forget_requests", keys=leases))
        for verdict in self.run([c.Release(**c.ticket(a), reason=reason) for a in claimed]):
            if verdict.error is not None and not isinstance(verdict.error, Conflict):
                raise verdict.error

    def start(self, task: Assignment | int | str, **fields: Any) -> Receipt:
        return receipt(self.call(c.Start(**ticket_of(task, fields))), task)

    def beat(self, task: Assignment | int | str, **fields: Any) -> Any:
        return self.call(c.Beat(**ticket_of(task, fields)))

    def succeed(self, task: Assignment | int | str, result: Any = None, **fields: Any) -> Receipt:
        more = {name: fields.pop(name) for name in _MORE if name in fields}
        if more:
            fields["more"] = More(**more)
        return receipt(self.call(c.Succeed(result=result, **ticket_of(task, fields))), task)

    def fail(self, task: Assignment | int | str, message: str, **fields: Any) -> Receipt:
        return receipt(self.call(c.Fail(message=message, **ticket_of(task, fields))), task)

    def release(self, task: Assignment | int | str, **fields: Any) -> Receipt:
        return receipt(self.call(c.Release(**ticket_of(task, fields))), task)

    def pause(self, task: Assignment | int | str, *, owner: str, reason: str, **fields: Any) -> Receipt:
        return receipt(self.call(c.Pause(owner=owner, reason=reason, **ticket_of(task, fields))), task)

    def log(self, task: Assignment | int | str, *lines: Any, **fields: Any) -> int:
        return int(self.call(c.Log(lines=lines, **ticket_of(task, fields))))

    def resume(self, task: int | str, **fields: Any) -> Receipt:
        return receipt(self.call(c.Resume(task=task, **fields)), task)

    def cancel(self, task: int | str, **fields: Any) -> Receipt:
        return receipt(self.call(c.Cancel(task=task, **fields)), task)

    def redrive(self, task: int | str, **fields: Any) -> Receipt:
        return receipt(self.call(c.Redrive(task=task, **fields)))

    def set_priority(self, task: int | str, priority: int, **fields: Any) -> Receipt:
        return receipt(self.call(c.SetPriority(task=task, priority=priority, **fields)), task)

    def reschedule(self, task: int | str, **fields: Any) -> Receipt:
        return receipt(self.call(c.Reschedule(task=task, **fields)), task)

    def dead_letter(self, task: int | str, reason_code: str, message: str = "", **fields: Any) -> Receipt:
        return receipt(self.call(DeadLetterIt(task=task, reason_code=reason_code, message=message, **fields)), task)

    # Kinds and queues.

    def configure(self, kind: str, policy: Policy, *, namespace: str = "default") -> None:
        """Give a kind its policy. Tasks that were submitted before keep theirs."""
        ns = self._intern_checked(kind, policy, namespace)
        self.store.names.configure(ns, kind, policy)

    def _intern_checked(self, kind: str, policy: Policy, namespace: str) -> int:
        limit = self.config.limits.name_chars
        text(kind, "kind", limit)
        text(namespace, "namespace", limit)
        if not isinstance(policy, Policy):
            raise InvalidInput("policy must be a Policy", field="policy")
        return self.store.names.intern_namespace(namespace)

    def declare(self, policies: Mapping[str, Policy], *, namespace: str = "default") -> None:
        """Give many kinds their policies. Only what differs is written."""
        self.store.names.refresh()
        for kind, policy in policies.items():
            if self.policy_of(kind, namespace=namespace) != policy:
                self.configure(kind, policy, namespace=namespace)

    def declare_keeping_redaction(
        self, policies: Mapping[str, Policy], *, namespace: str = "default"
    ) -> dict[str, list[str]]:
        """Give many kinds their policies, each with the paths that its kind redacts already. Answers those of them, by
        kind, that the new policy does not name."""
        self.store.names.refresh()
        return {kind: self._configure_keeping_redaction(kind, p, namespace) for kind, p in policies.items()}

    def _configure_keeping_redaction(self, kind: str, policy: Policy, namespace: str) -> list[str]:
        names = self.store.names
        key = names.intern_kind(self._intern_checked(kind, policy, namespace), kind)
        while True:
            was = names.policy_of_kind(key, self.config.names_ttl_s)
            kept = [path for path in names.policy(was).redact if path not in policy.redact]
            # Somebody else may have given it other paths meanwhile: these stay, too.
            if names.replace_policy(key, was, policy.with_(redact=(*policy.redact, *kept)) if kept else policy):
                return kept

    def policy_of(self, kind: str, *, namespace: str = "default") -> Policy | None:
        """The policy that the next tasks of a kind get; None for a kind that is not known."""
        names = self.store.names
        ns = names.namespace(text(namespace, "namespace", self.config.limits.name_chars))
        key = None if ns is None else names.kind(ns, text(kind, "kind", self.config.limits.name_chars))
        return None if key is None else names.policy(names.policy_of_kind(key, self.config.names_ttl_s))

    def pause_queue(self, queue: str, *, by: str = "anonymous", namespace: str = "default") -> None:
        """Let nothing more be claimed from a queue. What runs goes on."""
        text(by, "by", self.config.limits.name_chars)
        self._set_paused(queue, namespace, self.store.now(), by)

    def resume_queue(self, queue: str, *, namespace: str = "default") -> None:
        self._set_paused(queue, namespace, None, None)

    def _set_paused(self, queue: str, namespace: str, at: int | None, by: str | None) -> None:
        names = self.store.names
        ns = names.intern_namespace(text(namespace, "namespace", self.config.limits.name_chars))
        key = names.intern_queue(ns, text(queue, "queue", self.config.limits.name_chars))
        self.store.write(lambda tx: tx.query("pause_queue", key=key, at=at, by=by))

    # What the janitor does, one bounded step each.

    def expire_leases(self, now: int | None = None, limit: int = janitor.BATCH) -> list[int]:
        """Return abandoned work to the queue. Answers the keys of the tasks that were taken back."""
        whole(limit, "limit", 1, MOST_ROWS)
        if now is not None:
            whole(now, "now", 0, 2**62)
        return janitor.expire_leases(self.store, self._scope, now, limit)

    def do_due(self, limit: int = janitor.BATCH) -> int:
        """Promote what may run now, time out what is late, end cancels whose grace is over."""
        whole(limit, "limit", 1, MOST_ROWS)
        return janitor.do_due(self.store, self._scope, limit)

    def sweep(self) -> int:
        """One step of everything that is due. Zero when there was nothing to do."""
        try:
            taken = len(self.expire_leases())
        except Unavailable:
            raise
        except Exception:
            # What is due must not wait for a lease that cannot be ended.
            self.do_due()
            raise
        return taken + self.do_due()

    def prune(self, older_than_s: float, *, namespace: str | None = None, limit: int = janitor.BATCH) -> list[int]:
        """Remove whole terminal jobs by age, a bounded number at a time."""
        seconds(older_than_s, "older_than_s")
        whole(limit, "limit", 1, MOST_ROWS)
        ns = None
        if namespace is not None:
            ns = self.store.names.namespace(text(namespace, "namespace", self.config.limits.name_chars))
            if ns is None:
                return []
        return prune(self.store, older_than_s, ns, limit)

    def prune_notes(self, types: Sequence[str], older_than_s: float) -> None:
        """Remove old notes of these types. Transitions are never removed before their whole job is."""
        seconds(older_than_s, "older_than_s")
        for name in listed(types, "types", 1, 1_000):
            text(name, "types", self.config.limits.name_chars)
        if RESCHEDULED in types:
            raise InvalidInput(f"{RESCHEDULED} says when a task might run: it stays with its job", field="types")
        self.store.write(
            lambda tx: tx.query("prune_notes", types=list(types), before=tx.now - int(older_than_s * SECOND))
        )

    def janitor(
        self, every_s: float = 1.0, *, retention_s: float | None = None, namespace: str | None = None
    ) -> janitor.Janitor:
        """A thread that sweeps whenever something is due. Start it yourself; it ends with the engine at the latest.

        With `retention_s` it also removes jobs, of one namespace or of all, so long after their end.
        """
        retention = None if retention_s is None else self.retention(retention_s, namespace=namespace)
        new = janitor.Janitor(self.sweep, lambda: janitor.seconds_until_next(self.store), every_s, retention)
        self._janitors.append(new)
        return new

    def retention(self, keep_s: float, *, namespace: str | None = None) -> Retention:
        """The removal of old jobs step by step, for a loop of your own. The janitor has one."""
        seconds(keep_s, "retention_s", LEAST_RETENTION_S)
        if namespace is None:
            return Retention(self.store, keep_s)
        text(namespace, "namespace", self.config.limits.name_chars)
        return Retention(self.store, keep_s, lambda: self.store.names.namespace(namespace))

    def _scope(self, tx: Tx, size: int) -> BatchContext:
        return BatchContext(tx, size, self._chance, self.config.limits)

    def on_event(
        self, listener: Callable[[Event], object], *, after: int | None = None, namespace: str | None = None
    ) -> Subscription:
        """Call a function for every committed event, in order, from now on or from a cursor."""
        return self._listeners.add(listener, after, namespace)

    # Reads.

    def task(self, task: str, *, namespace: str = "default", actor: str = USER, raw: bool = False) -> Task:
        """A task. `raw`: its JSON as RawJson, for whoever only passes it on."""
        choice(actor, "actor", ACTORS)
        rows = self._read("task_by_id", id=task_id(task), namespace=namespace)
        if not rows:
            raise NotFound(f"there is no task {task}", task=task)
        return task_of_row(rows[0], actor, raw)

    def tasks(self, *, namespace: str = "default", limit: int = 100, before: int = 2**62) -> list[Task]:
        """The newest tasks first; `before` a key pages on."""
        rows = self._read("tasks_newest", namespace=namespace, limit=limit, before=before)
        return [task_of_row(r, USER) for r in rows]

    def explain(self, task: str, *, namespace: str = "default") -> list[Blocker]:
        """Why a task is not running, each reason with who holds it and when it ends. Empty: it can be claimed now."""
        text(namespace, "namespace", self.config.limits.name_chars)
        return explain(self.store, task, namespace)

    def position(self, task: str, *, namespace: str = "default", most: int = 1000) -> int | None:
        """How many tasks would be claimed before this one; None if it has no ready row.

        No more than `most` are counted: so many means so many or more.
        """
        text(namespace, "namespace", self.config.limits.name_chars)
        return position(self.store, task, namespace, whole(most, "most", 1, MOST_ROWS))

    def events(
        self, task: str, *, namespace: str = "default", after: int = 0, limit: int = 1000, raw: bool = False
    ) -> list[Event]:
        """One task's history, in order."""
        key = self.task(task, namespace=namespace, raw=True).key
        return [event_of(r, raw) for r in self._read("events_of_task", key=key, after=after, limit=limit)]

    def events_by_correlation(
        self, correlation_id: str, *, namespace: str = "default", after: int = 0, limit: int = 1000
    ) -> list[Event]:
        text(correlation_id, "correlation_id", self.config.limits.key_chars)
        rows = self._read(
            "events_by_correlation", correlation_id=correlation_id, id=id_or_none(correlation_id),
            namespace=namespace, after=after, limit=limit,
        )  # fmt: skip
        return [event_of(r) for r in rows]

    def logs(
        self, task: str, *, namespace: str = "default", after: int = 0, limit: int = 1000, raw: bool = False
    ) -> list[LogLine]:
        """Log lines from a cursor on."""
        rows = self._read("logs_of", id=task_id(task), namespace=namespace, after=after, limit=limit)
        if not rows:
            self.task(task, namespace=namespace)
        return [row if row.data is None else replace(row, data=json_of(row.data, raw)) for row in rows]

    def dead_letters(
        self, task: str | None = None, *, namespace: str = "default", limit: int = 100
    ) -> list[DeadLetter]:
        id_ = None if task is None else task_id(task)
        rows = self._read("dead_letters", id=id_, namespace=namespace, limit=limit)
        return [replace(row, last_error=json_of(row.last_error)) for row in rows]

    def _read(self, name: str, **params: Any) -> Rows:
        """Run a named query once its parameters are checked: what a database would refuse is refused by its name."""
        if "namespace" in params:
            text(params["namespace"], "namespace", self.config.limits.name_chars)
        if "limit" in params:
            whole(params["limit"], "limit", 0, MOST_ROWS)
        for number in ("after", "before"):
            if number in params:
                whole(params[number], number, 0, 2**62)
        self._committer.must_not_have_forked()
        return self.store.read(name, **params)


__all__ = ["Engine", "command_of", "event_of"]
