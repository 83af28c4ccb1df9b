"""Onetray: the app: its declared tasks and flows, and its database.

    app = Onetray("sqlite:///jobs.db")

    @app.task(retries=3)
    def send_mail(to: str) -> None: ...

    send_mail.submit(to="ann@example.org")

Owns the registry and opens the engine. worker/ runs the tasks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from onetray.app.job import Job, job_by_id
from onetray.app.rules import BatchRules, FlowRules, Options, ScheduleRules, TaskRules, WorkerRules, known
from onetray.app.tasks import TaskDefinition, declare
from onetray.config import Limits, hide_password, plain_url
from onetray.domain.checks import text
from onetray.domain.errors import InvalidInput, OnetrayError, StoreError, Unavailable, short_repr
from onetray.domain.limits import Limit, limits_of_queue
from onetray.domain.verbs import SubmitMany
from onetray.engine import Engine
from onetray.engine.api import EngineApi
from onetray.settings import load

if TYPE_CHECKING:
    from onetray.app.async_api import AsyncOnetray
    from onetray.app.flows import FlowDefinition
    from onetray.app.schedules import DeclaredSchedule
    from onetray.config import EngineConfig
    from onetray.domain.clock import Clock
    from onetray.domain.commands import Command, Submit
    from onetray.domain.policy import Policy
    from onetray.domain.task import Verdict
    from onetray.worker import Worker

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Onetray:
    """Declared tasks and flows, and one database, which is opened on first use."""

    def __init__(
        self,
        database: str | None = None,
        *,
        namespace: str | None = None,
        config: EngineConfig | None = None,
        clock: Clock | None = None,
        token: str | None = None,
        name: str = "default",
    ) -> None:
        """What is None comes from the environment (ONETRAY_DATABASE, …), from onetray.toml, or is the default.

        `database` may be a server's URL (http://host:8321); its `token` defaults to ONETRAY_TOKEN. Apps that share a
        namespace need a `name` each if they have schedules.
        """
        if database is not None and not database:
            raise StoreError("the database is empty: pass a URL such as sqlite:///jobs.db, or nothing for the default")
        settings = load().settings
        self.database, self.token = plain_url(database or settings.database), token
        self.namespace, self._clock = namespace if namespace is not None else settings.namespace, clock
        self._config = config or settings.engine
        self.tasks: dict[str, TaskDefinition[Any, Any]] = {}
        self.flows: dict[str, FlowDefinition[Any, Any]] = {}
        self.name = text(name, "name", Limits().name_chars)
        self.schedules: dict[str, DeclaredSchedule] = {}
        self.queue_limits: dict[tuple[str, str], Limit] = {}
        self.lifespan_of: Callable[[], Any] | None = None
        self.hooks: dict[str, list[Callable[..., Any]]] = {"before": [], "after": [], "on_error": []}
        self._to_include: list[str] = []
        self._engine: EngineApi | None = None
        self._opening = threading.Lock()
        self._opened_in = 0

    def __repr__(self) -> str:
        declared = [f"{name}: {', '.join(of)}" for name, of in (("tasks", self.tasks), ("flows", self.flows)) if of]
        return f"<app {'; '.join([hide_password(self.database), f'namespace {self.namespace}', *declared])}>"

    # Declaring.

    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> TaskDefinition[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> TaskDefinition[P, R]: ...
    @overload
    def task(self, /, **rules: Unpack[BatchRules]) -> _DeclareBatch: ...
    @overload
    def task(self, /, **rules: Unpack[TaskRules]) -> _Declare: ...
    def task(self, function: Any = None, /, **rules: Any) -> Any:
        """Declare a function as a task: `@app.task`, or with rules `@app.task(queue="mail", retries=3, timeout_s=60)`.

        The rules are `kind`, `queue`, `isolation`, `retries`, and every field of Policy. `retry_on` and `no_retry_on`
        take exception classes, which include their subclasses, or names of classes. With `cron`, and `timezone`, or
        `every_s`, it has a schedule with the name of its kind: see `schedule`. `debounce_s` and `throttle_s` merge
        submits (docs/debounce.md); with `batch`, a handler gets a list of tasks (docs/worker.md).
        """
        if function is not None:
            if not callable(function):
                raise InvalidInput(
                    f"{short_repr(function)} is no function: to name a task, write @app.task(kind=…)", field="function"
                )
            return self.register(declare(self, function))
        known(rules, BatchRules, "setting", "a task")
        times = {name: rules.pop(name) for name in ("cron", "every_s", "timezone") if name in rules}

        def register(function: Any) -> Any:
            task: TaskDefinition[Any, Any] = self.register(declare(self, function, **rules))
            if times:
                self.schedule(task.kind, task=task, **times)
            return task

        return register

    def register(self, task: TaskDefinition[P, R]) -> TaskDefinition[P, R]:
        """Add a declared task to the app: `@app.task` and `@flow.stage` do this."""
        known = self.tasks.get(task.kind)
        if known is not None and known.function is not task.function:
            raise InvalidInput(f"the kind {task.kind!r} is declared twice: pass another kind= to one", field="kind")
        self.tasks[task.kind] = task
        return task

    @overload
    def flow(
        self, name: str, *, config: type[C], results: type[R], **rules: Unpack[FlowRules]
    ) -> FlowDefinition[C, R]: ...
    @overload
    def flow(self, name: str, *, config: type[C], **rules: Unpack[FlowRules]) -> FlowDefinition[C, dict[str, Any]]: ...
    @overload
    def flow(self, name: str, *, results: type[R], **rules: Unpack[FlowRules]) -> FlowDefinition[Any, R]: ...
    @overload
    def flow(self, name: str, **rules: Unpack[FlowRules]) -> FlowDefinition[Any, dict[str, Any]]: ...
    def flow(self, name: str, *, config: Any = None, results: Any = None, **rules: Any) -> Any:
        """Declare a flow; `@flow.stage` adds its stages (see docs/flows.md).

        `config` is the type of its config. `results` is the type of its result, such as a dataclass with a field for
        each stage; by default a dict. `roll_up` is its roll-up policy, `deadline_s` the time to its end. Further rules
        apply to all its tasks; `redact` also to its config and to the input of its approvals.
        """
        from onetray.app.flows import FlowDefinition

        if text(name, "name", Limits().name_chars) in self.flows:
            raise InvalidInput(f"the flow {name!r} is declared twice", field="name")
        self.flows[name] = new = FlowDefinition(self, name, config, results, **rules)
        return new

    def schedule(
        self,
        name: str,
        *,
        task: TaskDefinition[Any, Any] | FlowDefinition[Any, Any] | str,
        payload: Any = None,
        **rules: Unpack[ScheduleRules],
    ) -> None:
        """Declare a schedule: submit a task with these arguments, or a flow with this config, at certain times.

        `app.schedule("report", task=report, payload={"days": 7}, cron="0 7 * * mon", timezone="Europe/Berlin")`, or
        `every_s=600`. Workers of the app register it when they start. A schedule that is no longer in the code is
        shown as orphaned, and not fired.
        """
        from onetray.app.schedules import declare_schedule

        if text(name, "name", Limits().name_chars) in self.schedules:
            raise InvalidInput(f"the schedule {name!r} is declared twice", field="name")
        self.schedules[name] = declare_schedule(self, name, task, payload, **rules)

    def limit(
        self, *, queue: str, concurrency: int | None = None, rate: str | None = None, smooth: bool = False
    ) -> None:
        """Limit a queue, over all workers: how many tasks run at once, or start within a period (`"100/m"`).

        `smooth` spreads the starts over the period. Limits of tasks are rules of `@app.task`: see docs/limits.md.
        """
        text(queue, "queue", Limits().name_chars)
        for what in limits_of_queue(queue, concurrency, rate, smooth):
            self.queue_limits[queue, what.what] = what

    def include(self, *modules: str) -> None:
        """Name modules that declare tasks and flows of this app: `app.include("shop.tasks")`.

        Of a package, all its modules are included. They are imported when their tasks are needed: when a worker starts,
        by `--app`, and by a submit of an unknown kind. So they may import this app from its module, wherever this is
        called.
        """
        from onetray.worker.app_loader import is_module_name

        for name in modules:
            if not is_module_name(name):
                raise InvalidInput(f"{name!r} is not the full name of a module: write package.module", field="include")
        self._to_include += modules

    def load_included(self) -> None:
        """Import the included modules now. Repeated calls import nothing."""
        from onetray.worker.app_loader import include

        while self._to_include:
            name = self._to_include[0]
            include(self, name)
            # Only now: after an error the next call tries again.
            self._to_include = [other for other in self._to_include if other != name]

    def task_of(self, kind: str) -> TaskDefinition[Any, Any] | None:
        """The task of a kind, also of an included module. None if there is none."""
        if kind not in self.tasks:
            self.load_included()
        return self.tasks.get(kind)

    def flow_of(self, name: str) -> FlowDefinition[Any, Any] | None:
        """The flow of a name, also of an included module. None if there is none."""
        if name not in self.flows:
            self.load_included()
        return self.flows.get(name)

    def lifespan(self, function: F) -> F:
        """Declare a generator, async or not, that yields `ctx.resources` for handlers. Each worker runs it."""
        if self.lifespan_of is not None:
            raise InvalidInput("the app already has a lifespan", field="lifespan")
        self.lifespan_of = function
        return function

    def before(self, function: F) -> F:
        """Declare a function, async or not, to call with ctx before each attempt. If it raises, the attempt fails."""
        self.hooks["before"].append(function)
        return function

    def after(self, function: F) -> F:
        """Declare a function to call with ctx and the result after each success."""
        self.hooks["after"].append(function)
        return function

    def on_error(self, function: F) -> F:
        """Declare a function to call with ctx and the exception after each failed attempt."""
        self.hooks["on_error"].append(function)
        return function

    @property
    def policies(self) -> dict[str, Policy]:
        """The declared policy of each kind. A flow with rules for its own job has one under its name, too."""
        from onetray.domain.policy import Policy

        policies = {task.kind: task.policy for task in self.tasks.values()}
        for flow in self.flows.values():
            if flow.own_rules:
                policy = policies.get(flow.name, Policy())
                redact = tuple(dict.fromkeys((*policy.redact, *flow.redact)))
                policies[flow.name] = policy.with_(**{**flow.own_rules, "redact": redact})
        return policies

    # The database.

    @property
    def engine(self) -> EngineApi:
        """The engine. It is opened on first use, and may be used only in the process that opened it."""
        if self._engine is None or self._opened_in != os.getpid():
            with self._opening:
                if self._engine is not None and self._opened_in != os.getpid():
                    raise StoreError("this app was opened before a fork: open it in each process, or use spawn")
                if self._engine is None:
                    self._engine = self._open()
                    self._opened_in = os.getpid()
        return self._engine

    def _open(self) -> EngineApi:
        if not self.database.startswith(("http://", "https://")):
            return Engine.open(self.database, clock=self._clock, config=self._config)
        from onetray.remote.engine import RemoteEngine

        return RemoteEngine(self.database, token=self.token, config=self._config)

    def use(self, engine: EngineApi | None) -> EngineApi | None:
        """Replace the engine, for tests. Returns the previous one."""
        old, self._engine, self._opened_in = self._engine, engine, os.getpid()
        return old

    def close(self) -> None:
        """Close the engine. The next use opens it again."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> Onetray:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Jobs.

    def job(self, id: str) -> Job[Any]:
        """The job with this id. Raises NotFound."""
        return job_by_id(self, id)

    @property
    def aio(self) -> AsyncOnetray:
        """The `async` API: `await app.aio.job(id)`, `await app.aio.submit(task, {…})`."""
        from onetray.app.async_api import AsyncOnetray

        return AsyncOnetray(self)

    @overload
    def submit(
        self, task: TaskDefinition[Any, R], /, payload: dict[str, Any] | None = None, **options: Unpack[Options]
    ) -> Job[R]: ...
    @overload
    def submit(self, task: str, /, payload: dict[str, Any] | None = None, **options: Unpack[Options]) -> Job[Any]: ...
    def submit(
        self, task: str | TaskDefinition[Any, Any], /, payload: dict[str, Any] | None = None, **options: Unpack[Options]
    ) -> Job[Any]:
        """Submit a task, or the task of a kind, with its arguments as a dict. The options are those of `Options`."""
        if not isinstance(payload, dict | None):
            raise InvalidInput(f"the payload must be a dict of arguments, not {short_repr(payload)}", field="payload")
        return self.definition(task).options(**options).submit(**(payload or {}))

    def definition(self, task: str | TaskDefinition[Any, R]) -> TaskDefinition[Any, R]:
        """The declared task of a kind. Raises InvalidInput."""
        found = self.task_of(task) if isinstance(task, str) else task
        if found is None and task in self.flows:
            raise InvalidInput(f"{task!r} is a flow: use app.flows[{task!r}].submit(config)", field="task")
        if found is None:
            raise InvalidInput(f"unknown task {task!r}; declared tasks: {', '.join(sorted(self.tasks))}", field="task")
        return found

    def submit_all(
        self, commands: Sequence[Command], connection: Any, of: TaskDefinition[Any, R] | FlowDefinition[Any, R]
    ) -> list[Job[R]]:
        """Run submit commands and return their jobs. Raises the first error."""
        engine, verdicts = self.engine, []
        for start in range(0, len(commands), engine.config.limits.batch):
            batch = commands[start : start + engine.config.limits.batch]
            verdicts += engine.run(batch) if connection is None else engine.run(batch, connection=connection)
        return [self.job_of(verdict, of) for verdict in verdicts]

    def submit_alike(self, like: Submit, payloads: list[Any], task: TaskDefinition[Any, R]) -> list[Job[R]]:
        """Submit tasks that differ only in their payloads, and return their jobs. Raises the first error at the end."""
        engine, load = self.engine, task.signature.result
        jobs: list[Job[R]] = []
        errors: list[OnetrayError] = []
        step = min(engine.config.bulk, engine.config.limits.batch)
        for start in range(0, len(payloads), step):
            batch = payloads[start : start + step]
            (verdict,) = engine.run([SubmitMany(like=like, payloads=batch)])
            if verdict.ok:
                jobs += [Job(self, id, "task", load) for id in verdict.value]
            elif isinstance(verdict.error, Unavailable):
                errors.append(verdict.error)
            else:
                # Submit each by itself, so that an invalid payload does not reject the others.
                for single in engine.run([replace(like, payload=payload) for payload in batch]):
                    if single.error is not None:
                        errors.append(single.error)
                    else:
                        jobs.append(self.job_of(single, task))
        if errors:
            raise errors[0]
        return jobs

    async def submit_all_on(
        self, connection: Any, commands: Sequence[Command], of: TaskDefinition[Any, R] | FlowDefinition[Any, R]
    ) -> list[Job[R]]:
        """As submit_all, inside the transaction of an async psycopg connection."""
        if not isinstance(self.engine, Engine):
            # Raises the error of the synchronous call.
            self.engine.run(commands, connection=connection)
        from onetray.store.caller_connection import submit_on_connection

        verdicts = await submit_on_connection(self.engine, connection, commands)
        return [self.job_of(verdict, of) for verdict in verdicts]

    def job_of(self, verdict: Verdict, of: TaskDefinition[Any, R] | FlowDefinition[Any, R]) -> Job[R]:
        """The job of a submit. Raises the verdict's error."""
        receipt = verdict.unwrap()
        if isinstance(of, TaskDefinition):
            return Job(self, receipt.id, "task", of.signature.result, receipt.repeated, receipt.window)
        return Job(self, receipt.id, "flow", of.result, receipt.repeated)

    def worker(self, **settings: Unpack[WorkerRules]) -> Worker:
        """A worker for this app, to run in this process: `app.worker(concurrency=10).run()`.

        The settings are those of WorkerConfig: concurrency, queues, name, drain_s, janitor, retention_s.
        """
        from onetray.worker import Worker

        return Worker(self, **settings)


if TYPE_CHECKING:
    from typing import Protocol

    class _Declare(Protocol):
        @overload
        def __call__(self, function: Callable[P, Awaitable[R]], /) -> TaskDefinition[P, R]: ...
        @overload
        def __call__(self, function: Callable[P, R], /) -> TaskDefinition[P, R]: ...

    class _DeclareBatch(Protocol):
        # Its submits take one item, or the fields of one: not the list that the function takes.
        def __call__(self, function: Callable[[list[Any]], Any], /) -> TaskDefinition[..., Any]: ...
