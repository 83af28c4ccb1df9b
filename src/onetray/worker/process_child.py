"""A child process that runs handlers: `python -m onetray.worker.process_child module:app IN OUT`.

Owns its end of the two pipes. It holds no lease and reports nothing itself: it tells its parent, and asks it. It
ends with its parent.
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
from collections.abc import Callable
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
from onetray.worker.call_handler import call, call_handler, drive, unkept

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray

PATIENCE_S = 5.0
"""How long the lifespan may take to end."""


class Pipes:
    """Lines of JSON from the parent and to it."""

    def __init__(self, from_parent: int, to_parent: int) -> None:
        for descriptor in (from_parent, to_parent):
            os.set_inheritable(descriptor, False)
        self._in, self._out = from_parent, to_parent
        self._pid, self._reaper, self._pipe = os.getpid(), os.getppid(), os.fstat(to_parent)
        self._writing = threading.Lock()
        self._asking = threading.Lock()
        self.orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.busy = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError), os.fdopen(self._in, "rb", closefd=False) as lines:
            for line in lines:
                message = orjson.loads(line)
                is_answer = "answer" in message or "error" in message
                (self._answers if is_answer else self.orders).put(message)
        # The parent is gone, or wants no more: what still runs here is nobody's.
        self.orders.put(None)
        self._answers.put(None)
        if not self.busy:
            time.sleep(PATIENCE_S)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # And what its handlers have started.
        os._exit(1)

    @property
    def is_here(self) -> bool:
        """Whether this is the process that the parent speaks to, and not one that a handler has forked."""
        return os.getpid() == self._pid

    def has_parent(self) -> bool:
        """Whether the parent still holds its end. Its last orders may lie in the pipe after its death."""
        poll = select.poll()
        poll.register(self._in, select.POLLHUP)
        closed = any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))
        return not closed and os.getppid() == self._reaper

    def _must_be_here(self) -> None:
        """Asked before a lock is taken: at the fork, a thread that is not here may have held it."""
        if not self.is_here:
            raise RuntimeError("ctx speaks only in the process that the handler began in, not in a fork of it")

    def send(self, message: dict[str, Any]) -> None:
        self._must_be_here()
        rest = memoryview(orjson.dumps(message) + b"\n")
        with self._writing:
            if not os.path.samestat(os.fstat(self._out), self._pipe):
                raise OSError(errno.EBADF, "a handler has closed the pipe to its worker")
            while rest:
                rest = rest[os.write(self._out, rest) :]

    def ask(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Ask the parent; answers None when it is gone."""
        self._must_be_here()
        with self._asking:
            self.send(message)
            return self._answers.get()


class ChildContext:
    """What stands behind ctx in a child: the parent."""

    def __init__(self, pipes: Pipes, turn: int, resources: Any, most_bytes: int) -> None:
        self._pipes, self._turn, self.resources, self._most_bytes = pipes, turn, resources, most_bytes
        self.more: dict[str, Any] = {}

    def log(self, level: str, line: str, data: dict[str, Any] | None) -> None:
        self._pipes.send({"turn": self._turn, "log": [level, line, data]})

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self._pipes.send({"turn": self._turn, "progress": [done, total, message]})

    def say(self, **more: Any) -> None:
        self.more.update(more)

    def checkpoint(self, body: Any) -> Saved:
        self._ask("checkpoint", orjson.Fragment(json_text(body, "body", self._most_bytes)))
        return Saved()

    def last_checkpoint(self) -> Any:
        return self._ask("last_checkpoint")

    def inputs(self) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("inputs")
        return found

    def config(self) -> Any:
        return self._ask("config")

    def answer(self) -> Any:
        return self._ask("answer")

    def results_of(self, stage: str) -> list[Any]:
        return list(self._ask("results_of", stage))

    def created_at(self) -> int:
        return int(self._ask("created_at"))

    def heartbeat(self) -> None:
        return  # The parent renews the lease, and kills this process when it is lost.

    def asked_to_stop(self) -> str | None:
        return None

    def _ask(self, name: str, *args: Any) -> Any:
        answer = self._pipes.ask({"turn": self._turn, "ask": name, "args": list(args)})
        if answer is None:
            raise RuntimeError("the worker is gone")
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]


class ChildRunner:
    """Where handlers are called here: async ones on a loop, others outside of it: they may use one themselves."""

    def __init__(self, app: Onetray, pipes: Pipes, most_bytes: int) -> None:
        self._app, self._pipes, self._most_bytes = app, pipes, most_bytes
        self._loop = asyncio.new_event_loop()
        self._lifespan = Lifespan(app.lifespan_of)
        self._resources = self._loop.run_until_complete(self._lifespan.begin())

    def attempt(self, turn: int, claimed: dict[str, Any]) -> Report | None:
        context = ChildContext(self._pipes, turn, self._resources, self._most_bytes)
        task = self._app.tasks[claimed["kind"]]
        assignment = Assignment(**{**claimed, "policy": Policy.from_body(claimed["policy"])})
        is_async = inspect.iscoroutinefunction(task.function)
        steps = call_handler(
            self._app, task, TaskContext(assignment, context, task.policy.redact),
            call if is_async else self._call_here, {"task": assignment.id}, context.more,
        )  # fmt: skip
        report = self._loop.run_until_complete(steps) if is_async else drive(steps)
        if isinstance(report, Succeed):
            try:
                # Checked here: what cannot be told to the parent must not look like a death.
                json_text(report.result, "result", self._most_bytes)
            except InvalidInput as e:
                return unkept(e, {"task": assignment.id})
        return report

    def close(self) -> None:
        self._loop.run_until_complete(self._lifespan.end())

    async def _call_here(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = function(*args, **kwargs)
        return self._loop.run_until_complete(given) if inspect.isawaitable(given) else given


def main(app_path: str, from_parent: int, to_parent: int) -> None:
    pipes = Pipes(from_parent, to_parent)
    hello, app = pipes.orders.get(), load_app(app_path)
    if hello is None:
        return
    app.database, app.token = hello["database"], hello["token"]
    room = ChildRunner(app, pipes, hello["result_bytes"])
    while (order := pipes.orders.get()) is not None:
        # Before the look at the parent: if that dies after it, what runs here is ended at once.
        pipes.busy = True
        if not pipes.has_parent():
            break
        turn, sure_until = order["turn"], order["sure_until"]
        if sure_until is not None and time.monotonic() > sure_until:
            # This process was stopped, or slow to start. The parent knows whether its lease was renewed.
            pipes.send({"turn": turn, "late": True})
        else:
            report = room.attempt(turn, order["run"])
            if not pipes.is_here:
                # A fork whose code came back from the handler as the handler itself did: it has nothing to report.
                os._exit(0 if isinstance(report, Succeed) else 1)
            assert report is not None
            pipes.send({"turn": turn, "end": encode_report(report)})
        pipes.busy = False
    room.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
