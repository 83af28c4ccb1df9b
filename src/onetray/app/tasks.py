"""TaskDefinition: what `@app.task` returns: a function, its policy, and the ways to submit it.

signature.py checks arguments; the engine carries out the submit.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack

import orjson

from onetray import otel
from onetray.app.batch import BatchLimits, BatchSignature, batch_limits
from onetray.app.context import TaskContext, current
from onetray.app.rules import Options, error_classes, error_names, known
from onetray.app.signature import Signature
from onetray.app.window_rules import RULES, WindowRules
from onetray.config import Limits
from onetray.domain.checks import text
from onetray.domain.clock import SECOND
from onetray.domain.commands import Submit
from onetray.domain.errors import InvalidInput
from onetray.domain.policy import Policy

if TYPE_CHECKING:
    from onetray.app.async_api import AsyncTask
    from onetray.app.job import Job
    from onetray.app.onetray import Onetray

P = ParamSpec("P")
R = TypeVar("R")

ASYNC, THREAD, PROCESS = "async", "thread", "process"
ISOLATION = (ASYNC, THREAD, PROCESS)
_SINGLE_ONLY = frozenset({"idempotency_key", "unique_key", "alias", "labels", "connection", "debounce_s", "throttle_s"})
"""Options that need a separate command for each call."""
OTHER_ENGINES_METHODS = frozenset({
    "apply", "apply_async", "call_local", "defer", "defer_async", "delay", "enqueue", "s", "schedule", "send",
    "send_with_options", "si",
})  # fmt: skip
"""How tasks of other engines are submitted."""


class Binding(Protocol):
    """How a function of a flow gets its arguments, and the tasks that its result creates."""

    def arguments(self, ctx: TaskContext) -> dict[str, Any]: ...

    def spawn(self, ctx: TaskContext, result: Any) -> dict[str, Any]: ...


@dataclass(frozen=True, eq=False)
class TaskDefinition(Generic[P, R]):
    """A function that can be submitted as a task. Calling it runs the function directly."""

    app: Onetray
    function: Callable[..., Any]
    kind: str
    queue: str
    policy: Policy
    isolation: str
    signature: Signature
    submit_options: Options = field(default_factory=Options)
    binding: Binding | None = None
    """In a flow: provides the arguments that are not in the payload."""
    retry_on: tuple[type[BaseException], ...] = ()
    no_retry_on: tuple[type[BaseException], ...] = ()
    """The classes among the errors of its rules: a worker compares these with subclasses, a policy has only names."""

    window: WindowRules | None = None
    """Whether its submits are debounced or throttled."""
    batch: BatchLimits | None = None
    """Of a task whose handler gets a list of tasks: its signature is a BatchSignature."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function directly, without the engine."""
        return self.function(*args, **kwargs)

    if not TYPE_CHECKING:  # A type checker would take any name.

        def __getattr__(self, name: str) -> Any:
            if name in OTHER_ENGINES_METHODS:
                raise AttributeError(
                    f"a task of onetray has no method {name!r}: use {self.function.__name__}.submit(…), "
                    f"with options {self.function.__name__}.options(delay_s=…).submit(…)"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<task {self.kind}>"

    def options(self, **options: Unpack[Options]) -> TaskDefinition[P, R]:
        """The same task with options for its submits (queue, delay_s, idempotency_key, …): see Options."""
        known(options, Options, "option", "a task")
        return replace(self, submit_options={**self.submit_options, **options})

    def decides_retry(self, error: BaseException) -> bool | None:
        """Whether its rules retry an error, if they name it or a class of it; None if the policy decides.

        `no_retry_on` has precedence over `retry_on`, and over an error that asks for a retry.
        """
        if isinstance(error, self.no_retry_on) or type(error).__name__ in self.policy.no_retry_on:
            return False
        return True if isinstance(error, self.retry_on) else None

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit the task to its queue. It is durable when this returns."""
        return self.app.submit_all([self.command(args, kwargs)], self.submit_options.get("connection"), self)[0]

    def submit_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Job[R]]:
        """Submit one task for each dict of arguments, in few transactions. Checks all arguments first."""
        calls = list(calls)
        payloads = self.signature.payloads(calls) if self._differs_only_in_payload() else None
        if payloads is None:
            return self.app.submit_all(self.commands(calls), self.submit_options.get("connection"), self)
        return self.app.submit_alike(self._submit(None, self._fields()), payloads, self)

    def _differs_only_in_payload(self) -> bool:
        """Whether all calls share everything else. Each child has its own idempotency key, so children do not."""
        return current.get() is None and self.window is None and not _SINGLE_ONLY & self.submit_options.keys()

    @property
    def aio(self) -> AsyncTask[P, R]:
        """The `async` API: `await task.aio.submit(…)`."""
        from onetray.app.async_api import AsyncTask

        return AsyncTask(self)

    def commands(self, calls: Iterable[Mapping[str, Any]]) -> list[Submit]:
        return [self.command((), _by_name(call)) for call in calls]

    def command(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Submit:
        payload = self.signature.payload(args, kwargs)
        fields = self._fields()
        if self.window is not None:
            self.window.add_to(fields, payload)
        inherit(fields, self.kind, payload)
        return self._submit(payload, fields)

    def _fields(self) -> dict[str, Any]:
        """The fields of Submit that the options set."""
        fields: dict[str, Any] = {"queue": self.queue}
        if self.submit_options:
            fields |= self.submit_options
            fields.pop("connection", None)
            if isinstance(fields.get("run_at"), datetime):
                fields["run_at"] = _micros(fields["run_at"])
        return fields

    def _submit(self, payload: Any, fields: dict[str, Any]) -> Submit:
        return Submit(kind=self.kind, payload=payload, policy=self.policy, namespace=self.app.namespace, **fields)


def _by_name(call: object) -> Mapping[str, Any]:
    if not isinstance(call, Mapping):
        raise InvalidInput(f"each call must be a dict of arguments, not {type(call).__name__}", field="calls")
    return call


def _micros(at: datetime) -> int:
    if at.tzinfo is None:
        raise InvalidInput("run_at has no time zone: use an aware datetime, as datetime.now(UTC)", field="run_at")
    return int(at.timestamp() * SECOND)


def inherit(fields: dict[str, Any], kind: str, payload: Any) -> None:
    """Give a child its parent's correlation id and trace, and a key, so that retries of the parent submit it once."""
    parent = current.get()
    if parent is None:
        return
    fields.setdefault("correlation_id", parent.correlation_id)
    trace = otel.here() or parent.trace
    if trace is not None:
        fields.setdefault("trace", trace)
    fields.setdefault("cause", f"task {parent.id}")
    if "idempotency_key" not in fields:
        body = orjson.dumps([kind, payload], option=orjson.OPT_SORT_KEYS)
        fields["idempotency_key"] = parent.child_key(hashlib.sha256(body).hexdigest()[:32])


def declare(
    app: Onetray,
    function: Callable[..., Any],
    *,
    kind: str | None = None,
    queue: str = "default",
    isolation: str | None = None,
    retries: int | None = None,
    binding: Binding | None = None,
    types: Mapping[str, Any] | None = None,
    **policy: Any,
) -> TaskDefinition[Any, Any]:
    name = getattr(function, "__name__", "<lambda>") if kind is None else kind
    if name == "<lambda>":
        raise InvalidInput("a function without a name needs kind=", field="kind")
    text(name, "kind", Limits().name_chars)
    text(queue, "queue", Limits().name_chars)
    coroutine = inspect.iscoroutinefunction(function)
    isolation = isolation or (ASYNC if coroutine else THREAD)
    if isolation not in ISOLATION:
        raise InvalidInput(f"{name}: isolation must be one of {', '.join(ISOLATION)}", field="isolation")
    if isolation == THREAD and coroutine:
        raise InvalidInput(f"{name} is async: use isolation='async' or 'process'", field="isolation")
    if isolation == ASYNC and not coroutine:
        raise InvalidInput(f"{name} is not async: use isolation='thread' or 'process'", field="isolation")
    if retries is not None:
        if "max_attempts" in policy:
            raise InvalidInput(f"{name}: set retries or max_attempts, not both", field="retries")
        if type(retries) is not int or retries < 0:
            raise InvalidInput(f"{name}: retries must be a whole number, 0 or more", field="retries")
        policy["max_attempts"] = retries + 1
    batch = batch_limits(name, policy.pop("batch", None), policy.pop("batch_s", None))
    signature = Signature(function, name, types) if batch is None else BatchSignature(function, name)
    arguments = list(signature.parameters) if batch is None else None
    window = WindowRules(name, {rule: policy.pop(rule, None) for rule in RULES}, arguments)
    return TaskDefinition(
        app, function, name, queue, _policy(policy), isolation, signature, binding=binding,
        window=window or None, batch=batch,
        retry_on=error_classes(policy, "retry_on"), no_retry_on=error_classes(policy, "no_retry_on"),
    )  # fmt: skip


def _policy(rules: dict[str, Any]) -> Policy:
    return Policy(**rules | {name: error_names(rules, name) for name in ("retry_on", "no_retry_on") if name in rules})
