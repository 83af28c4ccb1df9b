"""Call a handler and turn its outcome into a report.

Owns which report a return value, an exception, a cancel or a wait for input leads to. Shared by handlers on the event
loop, in threads and in child processes, which differ only in `call_function`. Handlers of batches: call_batch.py.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from inspect import isawaitable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from onetray import otel
from onetray.app.context import TEXT_CHARS, TaskContext, clean, current
from onetray.domain.commands import Fail, Pause, Release, Report, Succeed
from onetray.domain.errors import InvalidInput, TaskCancelled, TaskError, WaitForInput
from onetray.domain.flow import More
from onetray.domain.lifecycle import WAITING_INPUT

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.app.tasks import TaskDefinition

logger = logging.getLogger("onetray.worker")

Call = Callable[..., Awaitable[Any]]
INVALID_OUTCOME = "InvalidOutcome"
MAX_NAME_CHARS, MAX_REASON_CHARS = 200, 2_000


class BadArguments(Exception):
    """The payload does not match the function's parameters. The handler was not called."""


class BadResult(Exception):
    """The result does not match the function's return type, or cannot be stored as JSON."""


class ReportedTask(Protocol):
    """The task that a report is about."""

    def ticket(self) -> dict[str, Any]:
        """The fields that name it."""

    def success(self, result: Any, more: More | None) -> Succeed: ...


class TaskFields(NamedTuple):
    """A task that is known by these fields only."""

    fields: dict[str, Any]

    def ticket(self) -> dict[str, Any]:
        return self.fields

    def success(self, result: Any, more: More | None) -> Succeed:
        return Succeed(result=result, more=more, **self.fields)


async def call_handler(
    app: Onetray,
    task: TaskDefinition[Any, Any],
    ctx: TaskContext,
    call_function: Call,
    reported: ReportedTask,
    more: dict[str, Any],
) -> Report | None:
    """Run one attempt with its hooks, and return its report."""
    token = current.set(ctx)
    span = otel.begin(f"run {ctx.kind}", "CONSUMER", ctx.trace, **span_attributes(ctx)) if otel.tracer() else None
    report: Report | None = None
    try:
        arguments = _arguments(task, ctx)
        for hook in app.hooks["before"]:
            await call_function(hook, ctx)
        if call_function is call:
            # Not through call_function: one more coroutine costs as much as a short handler.
            returned = task.function(**arguments)
            if type(returned) is CoroutineType or isawaitable(returned):
                returned = await returned
        else:
            returned = await call_function(task.function, **arguments)
        result = check_result(task, returned)
        for hook in app.hooks["after"]:
            await call_after_hook(call_function, hook, ctx, result)
        # Most tasks are in no flow, and report nothing but their result.
        extras = success_extras(task, ctx, result, more) if task.binding or more else None
        report = reported.success(result, extras)
    except WaitForInput as e:
        report = Pause(state=WAITING_INPUT, owner=e.owner, reason=e.reason, **reported.ticket())
    except (asyncio.CancelledError, TaskCancelled) as e:
        if ctx.cancelled:
            reason = error_message(e)[:MAX_REASON_CHARS] or "stopped"
            report = Release(reason=reason, **reported.ticket())
        else:
            report = failure(e, reported.ticket())
    except BaseException as e:
        await call_error_hooks(app, ctx, call_function, e)
        if span is not None:
            span.failed(e)
        report = failure(e, reported.ticket(), task.decides_retry(e))
    finally:
        if span is not None:
            span.close()
            if report is not None:
                # Spans of the report become children of this span, which is a child of the submit's.
                report.trace = span.traceparent
        current.reset(token)
    return report


def span_attributes(ctx: TaskContext) -> dict[str, Any]:
    return {"onetray.task": ctx.id, "onetray.kind": ctx.kind, "onetray.attempt": ctx.attempt}


def _arguments(task: TaskDefinition[Any, Any], ctx: TaskContext) -> dict[str, Any]:
    try:
        return task.binding.arguments(ctx) if task.binding else task.signature.arguments(ctx.payload)
    except InvalidInput as e:
        raise BadArguments(str(e)) from e


def check_result(task: TaskDefinition[Any, Any], returned: Any) -> Any:
    try:
        return task.signature.kept(returned)
    except InvalidInput as e:
        raise BadResult(str(e)) from e


async def call_after_hook(call_function: Call, hook: Callable[..., Any], ctx: TaskContext, result: Any) -> None:
    try:
        await call_function(hook, ctx, result)
    except Exception:
        # The work is done, and a failed attempt would be retried.
        _log_failure("an after hook of", ctx)


def success_extras(
    task: TaskDefinition[Any, Any], ctx: TaskContext, result: Any, extras: dict[str, Any]
) -> More | None:
    try:
        spawn = task.binding.spawn(ctx, result) if task.binding else None
    except InvalidInput as e:
        # The next stage cannot be created from this result, and a retry would not change that.
        raise BadResult(str(e)) from e
    if not spawn and not extras:
        return None
    return More(spawn=spawn or {}, **extras)


async def call_error_hooks(app: Onetray, ctx: TaskContext, call_function: Call, error: BaseException) -> None:
    for hook in app.hooks["on_error"]:
        try:
            await call_function(hook, ctx, error)
        except Exception:
            _log_failure("an on_error hook of", ctx)


def _log_failure(what: str, ctx: TaskContext) -> None:
    """Log the exception that is being handled, with the task's secrets redacted."""
    if not ctx.redacts:
        logger.exception("%s %s %s failed", what, ctx.kind, ctx.id)
        return
    trace = "".join(traceback.format_exception(sys.exc_info()[1]))
    logger.error("%s %s %s failed: %s", what, ctx.kind, ctx.id, ctx.redacted(trace))


def failure(error: BaseException, fields: dict[str, Any], retry: bool | None = None) -> Fail:
    """The report of an attempt that failed. `retry`: what the rules of its task say about the error's class."""
    if isinstance(error, BadArguments):
        return Fail(
            error_class="ValidationError",
            message=error_message(error),
            reason_code="validation_failed",
            stage="input",
            **fields,
        )
    if isinstance(error, BadResult):
        return Fail(
            error_class="ValidationError", message=error_message(error), retryable=False, stage="output", **fields
        )
    task_error = error if isinstance(error, TaskError) else None
    trace = "".join(traceback.format_exception(error))
    return Fail(
        error_class=type(error).__name__[:MAX_NAME_CHARS],
        message=error_message(error),
        detail={"traceback": clean(trace[-TEXT_CHARS:])},
        **({"retryable": retry} if task_error is None else _chosen(task_error, retry)),
        **fields,
    )


def _chosen(error: TaskError, retry: bool | None) -> dict[str, Any]:
    """What a handler says about its failure: whether and when it is retried, and what its dead letter says."""
    # With a reason, an error is dead-lettered at once unless the report says that it is retryable.
    by_reason = True if error.reason_code is not None else None
    retryable = (by_reason if retry is None else retry) if error.retryable else False
    chosen = {"retryable": retryable, "retry_after_s": error.retry_after_s, "reason_code": error.reason_code}
    return chosen if error.stage is None else {**chosen, "stage": error.stage}


def invalid_outcome(error: InvalidInput, fields: dict[str, Any]) -> Fail:
    """The report of an attempt whose outcome the engine rejects. Not retryable: the next outcome would be the same."""
    message = f"the outcome of the handler could not be stored: {error}"[:MAX_REASON_CHARS]
    return Fail(error_class=INVALID_OUTCOME, message=clean(message), retryable=False, stage="output", **fields)


def is_invalid_outcome(command: Report) -> bool:
    """Whether a report was made by `invalid_outcome`: if the engine rejects that too, it must not be replaced again."""
    return isinstance(command, Fail) and command.error_class == INVALID_OUTCOME


def error_message(error: BaseException) -> str:
    """The message of an exception, even if its `__str__` raises: the task must get its report."""
    try:
        return clean(str(error))
    except Exception:
        return f"({type(error).__name__} cannot be printed)"


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function on the loop; await it if it is async."""
    returned = function(*args, **kwargs)
    return await returned if isawaitable(returned) else returned


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never suspends, without a loop."""
    try:
        coroutine.send(None)
    except StopIteration as e:
        return e.value
    coroutine.close()
    raise RuntimeError("a handler in a thread awaited something that needs an event loop")
