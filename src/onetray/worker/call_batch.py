"""Call a handler with many tasks at once, and turn the outcome into a report for each of them.

Owns which report each task gets. What one task's report is made of is call_handler.py's: hooks, spans, checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from onetray import otel
from onetray.app.batch import BatchItem, BatchSignature
from onetray.app.context import TaskContext, current
from onetray.domain.commands import Fail, Release, Report, Succeed
from onetray.domain.errors import InvalidInput, TaskCancelled, WaitForInput
from onetray.worker.call_handler import (
    MAX_REASON_CHARS,
    BadArguments,
    BadResult,
    Call,
    call_after_hook,
    call_error_hooks,
    check_result,
    error_message,
    failure,
    span_attributes,
    success_extras,
)

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.app.tasks import TaskDefinition


class TaskOfBatch(NamedTuple):
    """A task of a batch, and what its report needs."""

    ctx: TaskContext
    fields: dict[str, Any]
    more: dict[str, Any]


async def call_batch(
    app: Onetray, task: TaskDefinition[Any, Any], tasks: Sequence[TaskOfBatch], call_function: Call
) -> list[Report]:
    """Run one call with its hooks, and return the report of each task, in order."""
    members = [_Member(app, task, of_batch, call_function) for of_batch in tasks]
    for member in members:
        await member.begin()
        member.leave_out_if_stopped()
    ready = [member for member in members if member.error is None]
    try:
        if ready:
            _share_out(task, ready, await call_function(task.function, [member.argument for member in ready]))
    except (asyncio.CancelledError, TaskCancelled) as e:
        # A handler that stops for one of its tasks has not done the others: they cost no attempt.
        is_stopped = any(member.ctx.cancelled for member in ready)
        for member in ready:
            member.error, member.is_released = e, is_stopped
    except WaitForInput:
        for member in ready:
            member.error = BadResult("the handler of a batch cannot wait for input: it has many tasks")
    except BaseException as e:
        for member in ready:
            member.error = e
        reports = [await member.report() for member in members]
        _hide_secrets_of_others([(m, r) for m, r in zip(members, reports, strict=True) if m.error is e])
        return reports
    return [await member.report() for member in members]


def _hide_secrets_of_others(failed: list[tuple[_Member, Report]]) -> None:
    """An error that all tasks share may quote the secrets of any. Readers of one task must not see those of others."""
    contexts = [member.ctx for member, _ in failed if member.ctx.redacts]
    fails = [report for _, report in failed if isinstance(report, Fail)]
    if len(failed) < 2 or not contexts or not fails:
        return
    message, detail = fails[0].message, fails[0].detail
    for ctx in contexts:
        message, detail = ctx.redacted(message), ctx.redacted(detail)
    for fail in fails:
        fail.message, fail.detail = message, detail


def _share_out(task: TaskDefinition[Any, Any], ready: list[_Member], returned: Any) -> None:
    """Give each task its result, or the error that stands in its place."""
    if returned is None:
        returned = [None] * len(ready)
    if not isinstance(returned, list | tuple):
        what = f"a {type(returned).__name__}"
    elif len(returned) != len(ready):
        what = f"{len(returned)} results"
    else:
        for member, result in zip(ready, returned, strict=True):
            member.take(result)
        return
    raise BadResult(f"{task.kind} returned {what} for {len(ready)} items: return a list with one for each, or None")


class _Member:
    """One task during the call."""

    def __init__(
        self, app: Onetray, task: TaskDefinition[Any, Any], of_batch: TaskOfBatch, call_function: Call
    ) -> None:
        self._app, self._task, self._call = app, task, call_function
        self.ctx, self._fields, self._more = of_batch
        self._span: otel.Span | None = None
        self.argument: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_released = False

    async def begin(self) -> None:
        """Open its span, check its payload and call its hooks. A task that fails here is left out of the call."""
        self._span = otel.begin(f"run {self.ctx.kind}", "CONSUMER", self.ctx.trace, **span_attributes(self.ctx))
        if self._span is not None:
            self._span.leave()
            self._fields = {**self._fields, "trace": self._span.traceparent}
        token = current.set(self.ctx)
        try:
            self.argument = self._argument()
            for hook in self._app.hooks["before"]:
                await self._call(hook, self.ctx)
        except BaseException as e:
            self.error = e
            self.is_released = isinstance(e, asyncio.CancelledError | TaskCancelled) and self.ctx.cancelled
        finally:
            current.reset(token)

    def leave_out_if_stopped(self) -> None:
        if self.error is None and self.ctx.cancelled:
            self.error, self.is_released = TaskCancelled("it was stopped before its batch began"), True

    def _argument(self) -> Any:
        signature = self._task.signature
        assert isinstance(signature, BatchSignature)
        try:
            payload = signature.item(self.ctx.payload)
        except InvalidInput as e:
            raise BadArguments(str(e)) from e
        return BatchItem(payload, self.ctx) if signature.has_contexts else payload

    def take(self, result: Any) -> None:
        self.error = self.argument.error if isinstance(self.argument, BatchItem) else None
        if self.error is None and isinstance(result, BaseException):
            self.error = result
        self.result = result

    async def report(self) -> Report:
        token = current.set(self.ctx)
        try:
            return await self._report()
        finally:
            current.reset(token)
            if self._span is not None:
                self._span.close()

    async def _report(self) -> Report:
        if self.error is None:
            try:
                result = check_result(self._task, self.result)
                more = success_extras(self._task, self.ctx, result, self._more)
            except BadResult as e:
                self.error = e
            else:
                for hook in self._app.hooks["after"]:
                    await call_after_hook(self._call, hook, self.ctx, result)
                return Succeed(result=result, more=more, **self._fields)
        if self.is_released:
            return Release(reason=error_message(self.error)[:MAX_REASON_CHARS] or "stopped", **self._fields)
        await call_error_hooks(self._app, self.ctx, self._call, self.error)
        if self._span is not None:
            self._span.failed(self.error)
        return failure(self.error, self._fields, self._task.decides_retry(self.error))
