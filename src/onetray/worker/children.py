"""Run handlers in child processes: one task in each at a time, killed when it has to stop.

Owns the children. They are spawned, never forked, kept for the next task, and spoken to in lines of JSON over a pair of
pipes of their own: what a handler prints goes where the worker's output goes. A child that dies fails its attempt.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING, Any

import orjson

from onetray.commands import Fail, Pause, Release, Report, Succeed
from onetray.flowmodel import More, TaskSpec
from onetray.lifecycle import WAITING_INPUT
from onetray.worker.exits import how_it_ended

if TYPE_CHECKING:
    from onetray.app import Onetray
    from onetray.worker.run import Run

logger = logging.getLogger("onetray.worker")

ASKED = ("last_checkpoint", "inputs", "config", "answer", "results_of", "created_at", "checkpoint")
"""What a child may ask its parent for."""


LEAVE_S = 3.0


class Child:
    """One process that runs handlers of one app."""

    def __init__(self, app_path: str, hello: dict[str, Any]) -> None:
        to_child, from_parent = os.pipe()
        to_parent, from_child = os.pipe()
        # By the descriptors' numbers: not inherited by anything that the handler itself starts.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "onetray.worker.child", app_path, str(to_child), str(from_child)],
            pass_fds=(to_child, from_child),
            stdin=subprocess.DEVNULL,
            # Out of reach of the terminal's Ctrl-C, and ended together with whatever the handler has started.
            start_new_session=True,
        )
        os.close(to_child)
        os.close(from_child)
        self._out: IO[bytes] = os.fdopen(from_parent, "wb", buffering=0)
        self._in: IO[bytes] = os.fdopen(to_parent, "rb")
        with contextlib.suppress(BrokenPipeError):  # One that is dead already is noticed when it is given a task.
            self.send(hello)

    def send(self, message: dict[str, Any]) -> None:
        self._out.write(orjson.dumps(message) + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when the child has died."""
        line = self._in.readline()
        return orjson.loads(line) if line.endswith(b"\n") else None

    def kill(self) -> None:
        """End it with all that its handler has started, also if it is dead itself: its id is ours until `end`."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def dismiss(self) -> None:
        """Tell it that there is nothing more to do."""
        self._out.close()

    def end(self, patience_s: float = 0) -> str:
        """Wait for its end, kill it when it takes too long, and say how it died."""
        if patience_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
        self.kill()
        code = self.process.wait()
        self._out.close()
        self._in.close()
        return how_it_ended(code)


class Children:
    def __init__(self, app_path: str | None, app: Onetray) -> None:
        self._app_path, self._app = app_path, app
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._all: set[Child] = set()

    def attempt(self, run: Run) -> Report | None:
        """Run one attempt in a child, and say how it ended."""
        if self._app_path is None:
            message = "isolation='process' needs to know where the app is: onetray worker --app module:app"
            return Fail(error_class="ConfigurationError", message=message, retryable=False, **run.ticket())
        child = self._take()
        run.interrupt = child.kill
        if run.stop is not None:
            child.kill()
        run.begin()
        try:
            child.send({"run": _told(run)})
            report = self._converse(child, run)
        except (BrokenPipeError, ConnectionError):
            report = None
        run.interrupt = None
        if report is not None:
            self._give_back(child)
            return report
        return self._died(child, run)

    def _converse(self, child: Child, run: Run) -> Report | None:
        while (message := child.receive()) is not None:
            if "log" in message:
                run.log(*message["log"])
            elif "progress" in message:
                run.progress(*message["progress"])
            elif "ask" in message:
                child.send(_answer(run, message["ask"], message["args"]))
            elif "end" in message:
                return _report(message["end"], run)
        return None

    def _died(self, child: Child, run: Run) -> Report:
        how = child.end()
        with self._lock:
            self._all.discard(child)
        if run.stop is not None:
            return Release(reason=f"{run.stop}; its process was ended", **run.ticket())
        message = f"the process that ran it died: {how}"
        logger.error("%r: %s", run, message)
        return Fail(error_class="ProcessDied", message=message, **run.ticket())

    def _take(self) -> Child:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.process.poll() is None:
                    return child
                self._all.discard(child)
                child.end()
        assert self._app_path is not None
        child = Child(self._app_path, self._hello())
        with self._lock:
            self._all.add(child)
        return child

    def _hello(self) -> dict[str, Any]:
        """What a child cannot find by the app's path: it may have been changed here."""
        most = self._app.engine.config.limits.result_bytes
        return {"database": self._app.database, "token": self._app.token, "result_bytes": most}

    def _give_back(self, child: Child) -> None:
        with self._lock:
            self._idle.append(child)

    def close(self) -> None:
        """Let idle ones end their lifespans; kill the rest."""
        with self._lock:
            children, idle, self._all, self._idle = self._all, self._idle, set(), []
        for child in idle:
            child.dismiss()
        for child in children:
            child.end(LEAVE_S if child in idle else 0)


def _told(run: Run) -> dict[str, Any]:
    a = run.assignment
    return {
        "key": a.key, "id": a.id, "kind": a.kind, "queue": a.queue, "namespace": a.namespace, "worker": a.worker,
        "fence": a.fence, "attempt": a.attempt, "lease": a.lease, "lease_expires_at": a.lease_expires_at,
        "payload_json": a.payload_json, "input_json": a.input_json, "correlation_id": a.correlation_id,
        "trace": a.trace, "policy": a.policy.body, "lease_s": a.lease_s, "state": a.state, "flow": a.flow,
    }  # fmt: skip


def _answer(run: Run, name: str, args: list[Any]) -> dict[str, Any]:
    try:
        if name not in ASKED:
            raise ValueError(f"a child may not ask for {name}")
        value = getattr(run, name)(*args)
        return {"answer": None if name == "checkpoint" else value}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}


def _report(end: dict[str, Any], run: Run) -> Report:
    """The report that a child has written out, by the name of its verb."""
    verb, fields = end["verb"], {**end["fields"], **run.ticket()}
    if verb == "succeed":
        more = fields.pop("more")
        if more is not None:
            more["spawn"] = {stage: [TaskSpec(**spec) for spec in specs] for stage, specs in more["spawn"].items()}
            more = More(**more)
        return Succeed(more=more, **fields)
    if verb == "pause":
        return Pause(state=WAITING_INPUT, **fields)
    return Fail(**fields) if verb == "fail" else Release(**fields)
