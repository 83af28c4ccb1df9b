"""Call a handler and say how it ended: one report for each way.

Owns what a return value, an exception, a cancel or a wait for input leads to. Written once for handlers on the loop,
in threads and in child processes: `how` is how a function is called there.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

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
INVALID = "InvalidOutcome"
NAME_CHARS, REASON_CHARS = 200, 2_000


class BadArguments(Exception):
    """The payload does not fit the function: nothing was called."""


class BadResult(Exception):
    """The function gave what it does not say that it gives, or what cannot be kept as JSON."""


async def call_handler(
    app: Onetray,
    task: TaskDefinition[Any, Any],
    ctx: TaskContext,
    how: Call,
    fields: dict[str, Any],
    more: dict[str, Any],
) -> Report | None:
    """Run one attempt. Answers the report, or None when there is nothing to report any more."""
    token = current.set(ctx)
    span = otel.begin(f"run {ctx.kind}", "CONSUMER", ctx.trace, **_facts(ctx)) if otel.tracer() else None
    if span is not None:
        # What it reports is told of under its own span, which stands under the submit's.
        fields = {**fields, "trace": span.traceparent}
    try:
        arguments = _arguments(task, ctx)
        for hook in app.hooks["before"]:
            await how(hook, ctx)
        if how is call:
            # Without a coroutine in between: it would cost as much as a short handler.
            given = task.function(**arguments)
            if isawaitable(given):
                given = await given
        else:
            given = await how(task.function, **arguments)
        result = _kept(task, given)
        for hook in app.hooks["after"]:
            await _after(how, hook, ctx, result)
        return Succeed(result=result, more=_more(task, ctx, result, more), **fields)
    except WaitForInput as e:
        return Pause(state=WAITING_INPUT, owner=e.owner, reason=e.reason, **fields)
    except (asyncio.CancelledError, TaskCancelled) as e:
        if ctx.cancelled:
            return Release(reason=error_message(e)[:REASON_CHARS] or "stopped", **fields)
        return failure(e, fields)
    except BaseException as e:
        await _tell_error(app, ctx, how, e)
        if span is not None:
            span.failed(e)
        return failure(e, fields)
    finally:
        if span is not None:
            span.close()
        current.reset(token)


def _facts(ctx: TaskContext) -> dict[str, Any]:
    return {"onetray.task": ctx.id, "onetray.kind": ctx.kind, "onetray.attempt": ctx.attempt}


def _arguments(task: TaskDefinition[Any, Any], ctx: TaskContext) -> dict[str, Any]:
    try:
        return task.binding.arguments(ctx) if task.binding else task.signature.arguments(ctx.payload)
    except InvalidInput as e:
        raise BadArguments(str(e)) from e


def _kept(task: TaskDefinition[Any, Any], given: Any) -> Any:
    try:
        return task.signature.kept(given)
    except InvalidInput as e:
        raise BadResult(str(e)) from e


async def _after(how: Call, hook: Callable[..., Any], ctx: TaskContext, result: Any) -> None:
    try:
        await how(hook, ctx, result)
    except Exception:
        # The work is done: to fail now would have it done again.
        _log_failure("a hook after", ctx)


def _more(task: TaskDefinition[Any, Any], ctx: TaskContext, result: Any, said: dict[str, Any]) -> More | None:
    try:
        spawn = task.binding.spawn(ctx, result) if task.binding else None
    except InvalidInput as e:
        # The next stage cannot be made from it, and could not the next time.
        raise BadResult(str(e)) from e
    if not spawn and not said:
        return None
    return More(spawn=spawn or {}, **said)


async def _tell_error(app: Onetray, ctx: TaskContext, how: Call, error: BaseException) -> None:
    for hook in app.hooks["on_error"]:
        try:
            await how(hook, ctx, error)
        except Exception:
            _log_failure("a hook on the error of", ctx)


def _log_failure(what: str, ctx: TaskContext) -> None:
    """Log the exception that is being handled. It may quote what its task redacts."""
    if not ctx.redacts:
        logger.exception("%s %s %s failed", what, ctx.kind, ctx.id)
        return
    trace = "".join(traceback.format_exception(sys.exc_info()[1]))
    logger.error("%s %s %s failed: %s", what, ctx.kind, ctx.id, ctx.redacted(trace))


def failure(error: BaseException, fields: dict[str, Any]) -> Fail:
    """The report of an attempt that failed."""
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
    said = error if isinstance(error, TaskError) else None
    trace = "".join(traceback.format_exception(error))
    return Fail(
        error_class=type(error).__name__[:NAME_CHARS],
        message=error_message(error),
        retryable=False if said is not None and not said.retryable else None,
        retry_after_s=said.retry_after_s if said is not None else None,
        detail={"traceback": clean(trace[-TEXT_CHARS:])},
        **fields,
    )


def unkept(error: InvalidInput, fields: dict[str, Any]) -> Fail:
    """The report of an attempt whose outcome the engine does not take: it would not take it the next time either."""
    message = f"what the handler gave could not be kept: {error}"[:REASON_CHARS]
    return Fail(error_class=INVALID, message=clean(message), retryable=False, stage="output", **fields)


def says_unkept(command: Report) -> bool:
    """Whether it is such a report itself: there is nothing left to say when that is not taken either."""
    return isinstance(command, Fail) and command.error_class == INVALID


def error_message(error: BaseException) -> str:
    """What an exception says. One that cannot be printed must not leave its task without a report."""
    try:
        return clean(str(error))
    except Exception:
        return f"({type(error).__name__} cannot be printed)"


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function on the loop; await it if it is async."""
    given = function(*args, **kwargs)
    return await given if isawaitable(given) else given


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that waits for nothing, without a loop."""
    try:
        coroutine.send(None)
    except StopIteration as e:
        return e.value
    coroutine.close()
    raise RuntimeError("a handler in a thread waited for something that is not there")
