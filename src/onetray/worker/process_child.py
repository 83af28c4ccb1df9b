"""A child process that runs handlers: `python -m onetray.worker.process_child module:app IN OUT`.

Talks only to its worker, over two pipes. The worker holds the leases and sends the reports. The child ends when its
worker ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from onetray.app.context import Saved, TaskContext
from onetray.domain.checks import json_text
from onetray.domain.commands import Report, Succeed
from onetray.domain.errors import InvalidInput
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.remote.command_codec import encode_report
from onetray.worker.app_loader import Lifespan, load_app
from onetray.worker.call_batch import TaskOfBatch, call_batch
from onetray.worker.call_handler import Call, TaskFields, call, call_handler, drive, invalid_outcome
from onetray.worker.stop_signals import outlive_readers

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.app.tasks import TaskDefinition

EXIT_TIMEOUT_S = 5.0
"""How long an idle child may take to end its lifespan."""


class Pipes:
    """JSON messages from and to the worker, one per line."""

    def __init__(self, from_parent: int, to_parent: int) -> None:
        for descriptor in (from_parent, to_parent):
            os.set_inheritable(descriptor, False)
        self._in, self._out = from_parent, to_parent
        self._pid, self._reaper, self._pipe = os.getpid(), os.getppid(), os.fstat(to_parent)
        self._write_lock = threading.Lock()
        self._request_lock = threading.Lock()
        self.messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.busy = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError), os.fdopen(self._in, "rb", closefd=False) as lines:
            for line in lines:
                message = orjson.loads(line)
                is_answer = "answer" in message or "error" in message
                (self._answers if is_answer else self.messages).put(message)
        # The worker has ended or has closed the pipe: nothing may go on here.
        self.messages.put(None)
        self._answers.put(None)
        if not self.busy:
            time.sleep(EXIT_TIMEOUT_S)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # With the processes that handlers have started.
        os._exit(1)

    @property
    def is_original_process(self) -> bool:
        """False in a process that a handler has forked."""
        return os.getpid() == self._pid

    def has_parent(self) -> bool:
        """Whether the worker still holds its end of the pipe, which may contain messages of a worker that has died."""
        poll = select.poll()
        poll.register(self._in, select.POLLHUP)
        closed = any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))
        return not closed and os.getppid() == self._reaper

    def _check_process(self) -> None:
        """Called before a lock is taken: in a fork, a thread that does not exist there may have held it."""
        if not self.is_original_process:
            raise RuntimeError("ctx works only in the process that the handler began in, not in a fork of it")

    def send(self, message: dict[str, Any]) -> None:
        self._check_process()
        rest = memoryview(orjson.dumps(message) + b"\n")
        with self._write_lock:
            if not os.path.samestat(os.fstat(self._out), self._pipe):
                raise OSError(errno.EBADF, "a handler has closed the pipe to its worker")
            while rest:
                rest = rest[os.write(self._out, rest) :]

    def request(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Send a request and return the worker's answer, or None if the worker has ended."""
        self._check_process()
        with self._request_lock:
            self.send(message)
            return self._answers.get()


class ChildContext:
    """Implements `ctx` in a child process by messages to the worker."""

    def __init__(self, pipes: Pipes, sequence: int, item: int, resources: Any, max_bytes: int) -> None:
        self._pipes, self.resources, self._max_bytes = pipes, resources, max_bytes
        self._origin = {"sequence": sequence, "item": item}
        self.more: dict[str, Any] = {}

    def log(self, level: str, line: str, data: dict[str, Any] | None) -> None:
        self._pipes.send({**self._origin, "log": [level, line, data]})

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self._pipes.send({**self._origin, "progress": [done, total, message]})

    def say(self, **more: Any) -> None:
        self.more.update(more)

    def checkpoint(self, body: Any) -> Saved:
        self._request("checkpoint", orjson.Fragment(json_text(body, "body", self._max_bytes)))
        return Saved()

    def last_checkpoint(self) -> Any:
        return self._request("last_checkpoint")

    def inputs(self) -> dict[str, Any]:
        inputs: dict[str, Any] = self._request("inputs")
        return inputs

    def config(self) -> Any:
        return self._request("config")

    def answer(self) -> Any:
        return self._request("answer")

    def results_of(self, stage: str) -> list[Any]:
        return list(self._request("results_of", stage))

    def created_at(self) -> int:
        return int(self._request("created_at"))

    def heartbeat(self) -> None:
        return  # The worker renews the lease, and kills this process if it is lost.

    def asked_to_stop(self) -> str | None:
        return None

    def _request(self, name: str, *args: Any) -> Any:
        answer = self._pipes.request({**self._origin, "ask": name, "args": list(args)})
        if answer is None:
            raise RuntimeError("the worker has ended")
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]


class ChildRunner:
    """Runs handlers: async ones on an event loop, others outside of it, so that they can run a loop of their own."""

    def __init__(self, app: Onetray, pipes: Pipes, max_bytes: int) -> None:
        self._app, self._pipes, self._max_bytes = app, pipes, max_bytes
        self._loop = asyncio.new_event_loop()
        self._lifespan = Lifespan(app.lifespan_of)
        self._resources = self._loop.run_until_complete(self._lifespan.begin())

    def run(self, sequence: int, runs: list[dict[str, Any]]) -> list[Report | None]:
        """Run one call: of an attempt, or of a batch. Returns the report of each."""
        task = self._app.tasks[runs[0]["kind"]]
        tasks = [self._task_of(task, sequence, item, fields) for item, fields in enumerate(runs)]
        is_async = inspect.iscoroutinefunction(task.function)
        steps = self._steps(task, tasks, call if is_async else self._call_here)
        reports = self._loop.run_until_complete(steps) if is_async else drive(steps)
        return [self._storable(report, of.fields) for report, of in zip(reports, tasks, strict=True)]

    async def _steps(
        self, task: TaskDefinition[Any, Any], tasks: list[TaskOfBatch], call_function: Call
    ) -> Sequence[Report | None]:
        if task.batch is not None:
            return await call_batch(self._app, task, tasks, call_function)
        ctx, fields, more = tasks[0]
        return [await call_handler(self._app, task, ctx, call_function, TaskFields(fields), more)]

    def _task_of(self, task: TaskDefinition[Any, Any], sequence: int, item: int, fields: dict[str, Any]) -> TaskOfBatch:
        context = ChildContext(self._pipes, sequence, item, self._resources, self._max_bytes)
        assignment = Assignment(**{**fields, "policy": Policy.from_body(fields["policy"])})
        return TaskOfBatch(TaskContext(assignment, context, task.policy.redact), {"task": assignment.id}, context.more)

    def _storable(self, report: Report | None, fields: dict[str, Any]) -> Report | None:
        """Checked here: a result that cannot be sent would look like a crash of this process."""
        if isinstance(report, Succeed):
            try:
                json_text(report.result, "result", self._max_bytes)
            except InvalidInput as e:
                return invalid_outcome(e, fields)
        return report

    def close(self) -> None:
        self._loop.run_until_complete(self._lifespan.end())

    async def _call_here(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        returned = function(*args, **kwargs)
        return self._loop.run_until_complete(returned) if inspect.isawaitable(returned) else returned


def main(app_path: str, from_parent: int, to_parent: int) -> None:
    outlive_readers()
    pipes = Pipes(from_parent, to_parent)
    setup = pipes.messages.get()
    try:
        app = load_app(app_path)
    except InvalidInput as e:
        sys.exit(f"{e.facts.get('traceback', '')}onetray: {e}")
    if setup is None:
        return
    app.database, app.namespace, app.token = setup["database"], setup["namespace"], setup["token"]
    runner = ChildRunner(app, pipes, setup["result_bytes"])
    while (message := pipes.messages.get()) is not None:
        # Set before has_parent: if the worker dies after that check, _listen kills the handler at once.
        pipes.busy = True
        if not pipes.has_parent():
            break
        sequence, valid_until = message["sequence"], message["valid_until"]
        if valid_until is not None and time.monotonic() > valid_until:
            # This process was suspended, or slow to start. The worker knows whether the lease was renewed.
            pipes.send({"sequence": sequence, "late": True})
        else:
            reports = runner.run(sequence, message["runs"])
            if not pipes.is_original_process:
                # A fork made by the handler has returned from it: only the original process reports.
                os._exit(0 if all(isinstance(report, Succeed) for report in reports) else 1)
            pipes.send({"sequence": sequence, "ends": [encode_report(report) for report in reports if report]})
        pipes.busy = False
    runner.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
