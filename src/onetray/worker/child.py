"""A child process that runs handlers: `python -m onetray.worker.child module:app IN OUT`.

Owns its end of the two pipes. It holds no lease and reports nothing itself: it tells its parent, and asks it. It
ends with its parent.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from onetray.commands import Fail, Pause, Release, Report, Succeed
from onetray.context import Saved, TaskContext
from onetray.errors import InvalidInput
from onetray.fields import json_text
from onetray.model import Assignment, Policy
from onetray.worker.attempt import attempt, call, drive, unkept
from onetray.worker.lifespan import Lifespan
from onetray.worker.locate import locate

if TYPE_CHECKING:
    from onetray.app import Onetray

PATIENCE_S = 5.0
"""How long the lifespan may take to end."""
FIELDS: dict[type[Report], tuple[str, ...]] = {
    Succeed: ("result",),
    Fail: ("message", "error_class", "retryable", "reason_code", "stage", "detail", "retry_after_s"),
    Pause: ("owner", "reason"),
    Release: ("reason",),
}
"""What is told of each report. The ticket is the parent's."""


class Pipes:
    """Lines of JSON from the parent and to it."""

    def __init__(self, from_parent: int, to_parent: int) -> None:
        self._in = os.fdopen(from_parent, "rb")
        self._out = os.fdopen(to_parent, "wb", buffering=0)
        self._writing = threading.Lock()
        self.heard: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.busy = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._in:
            self.heard.put(orjson.loads(line))
        # The parent is gone, or wants no more: what still runs here is nobody's.
        self.heard.put(None)
        if not self.busy:
            time.sleep(PATIENCE_S)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # And what its handlers have started.
        os._exit(1)

    def send(self, message: dict[str, Any]) -> None:
        with self._writing:
            self._out.write(orjson.dumps(message) + b"\n")


class ChildDesk:
    """What stands behind ctx in a child: the parent."""

    def __init__(self, pipes: Pipes, resources: Any, most_bytes: int) -> None:
        self._pipes, self.resources, self._most_bytes = pipes, resources, most_bytes
        self._asking = threading.Lock()
        self.more: dict[str, Any] = {}

    def log(self, level: str, line: str, data: dict[str, Any] | None) -> None:
        self._pipes.send({"log": [level, line, data]})

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self._pipes.send({"progress": [done, total, message]})

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
        with self._asking:
            self._pipes.send({"ask": name, "args": list(args)})
            answer = self._pipes.heard.get()
        if answer is None:
            raise RuntimeError("the worker is gone")
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]


class Room:
    """Where handlers are called here: async ones on a loop, others outside of it: they may use one themselves."""

    def __init__(self, app: Onetray, pipes: Pipes, most_bytes: int) -> None:
        self._app, self._pipes, self._most_bytes = app, pipes, most_bytes
        self._loop = asyncio.new_event_loop()
        self._lifespan = Lifespan(app.lifespan_of)
        self._resources = self._loop.run_until_complete(self._lifespan.begin())

    def attempt(self, told: dict[str, Any]) -> Report | None:
        desk, task = ChildDesk(self._pipes, self._resources, self._most_bytes), self._app.tasks[told["kind"]]
        assignment = Assignment(**{**told, "policy": Policy.from_body(told["policy"])})
        is_async = inspect.iscoroutinefunction(task.function)
        steps = attempt(
            self._app, task, TaskContext(assignment, desk, task.policy.redact), call if is_async else self._call_here,
            {"task": assignment.key}, desk.more,
        )  # fmt: skip
        report = self._loop.run_until_complete(steps) if is_async else drive(steps)
        if isinstance(report, Succeed):
            try:
                # Checked here: what cannot be told to the parent must not look like a death.
                json_text(report.result, "result", self._most_bytes)
            except InvalidInput as e:
                return unkept(e, {"task": assignment.key})
        return report

    def close(self) -> None:
        self._loop.run_until_complete(self._lifespan.end())

    async def _call_here(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = function(*args, **kwargs)
        return self._loop.run_until_complete(given) if inspect.isawaitable(given) else given


def main(app_path: str, from_parent: int, to_parent: int) -> None:
    pipes = Pipes(from_parent, to_parent)
    hello, app = pipes.heard.get(), locate(app_path)
    assert hello is not None
    app.database, app.token = hello["database"], hello["token"]
    room = Room(app, pipes, hello["result_bytes"])
    while (message := pipes.heard.get()) is not None:
        pipes.busy = True
        pipes.send({"end": _written(room.attempt(message["run"]))})
        pipes.busy = False
    room.close()


def _written(report: Report | None) -> dict[str, Any]:
    assert report is not None
    fields = {name: getattr(report, name) for name in FIELDS[type(report)]}
    if isinstance(report, Succeed):
        fields["more"] = None if report.more is None else asdict(report.more)
    return {"verb": report.verb, "fields": fields}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
