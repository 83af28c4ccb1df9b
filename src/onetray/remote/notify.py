"""Listeners for a server: requests that the server answers when something was committed.

Owns two listeners: one for any commit, and one for work in the queues from which this process claims. They run while
this process has waiters. They carry no data and may miss a commit: waiters poll, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any
from urllib.parse import urlencode

from onetray.domain.errors import OnetrayError
from onetray.notify.base import Listener, OnCommit, WantedWork, WorkListener
from onetray.notify.new_work import NewWork, Queue, everywhere
from onetray.remote.transport import Transport

logger = logging.getLogger("onetray.remote")

WAIT_S = 20.0
"""How long the server may keep the request while nothing is committed."""
MARGIN_S = 10.0
PAUSE_S = 0.01
RETRY_FULL_S = 1.0
"""How often to ask a server that has no slot for another waiting request."""
BACKOFF_S = (0.2, 5.0)


class RemoteSource:
    """A server as a source of wake-ups."""

    single_process = notifies_others = False
    notify_every_s = 0.0

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.on_commit: list[Callable[[NewWork[int], bool], None]] = []
        self.before_commit: list[Callable[[NewWork[int]], None]] = []

    def notify_others(self, work: NewWork[int]) -> None:
        """Does nothing: the server notifies its other clients."""

    def named(self, work: NewWork[int]) -> NewWork[Queue]:
        """A client does not know the keys of queues."""
        return everywhere()

    def with_work(self, queues: Collection[Queue]) -> Collection[Queue]:
        """All of them: only the server knows which have work."""
        return queues

    def listener(self) -> Listener:
        return RemoteListener(self._transport.copy())

    def work_listener(self, wanted: Callable[[], WantedWork]) -> WorkListener:
        return RemoteWorkListener(self._transport.copy(), wanted)


class RemoteListener:
    """Notices any commit, of any process."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._stopping = threading.Event()
        self._socket: socket.socket | None = None
        self.is_connected = False

    def run(self, on_commit: OnCommit, has_waiters: threading.Event) -> None:
        # Kept while nothing waits here: a commit between a waiter's read and its wait is noticed, too.
        known: dict[str, Any] = {}
        wait = BACKOFF_S[0]
        while not self._stopping.is_set():
            has_waiters.wait()
            if self._stopping.is_set():
                break
            try:
                known = self._wait_for_commit(known, on_commit)
            except OnetrayError as e:
                if self._was_interrupted():
                    continue
                logger.debug("cannot wait for commits of the server; polling instead: %s", e)
                self.is_connected = False
                self._stopping.wait(wait)
                wait = min(2 * wait, BACKOFF_S[1])
                continue
            self.is_connected, wait = bool(known.get("heard")), BACKOFF_S[0]
            self._stopping.wait(RETRY_FULL_S if known.get("full") else PAUSE_S)
        self._transport.close()

    def _wait_for_commit(self, known: dict[str, Any], on_commit: OnCommit) -> dict[str, Any]:
        position = self._request((name, known[name]) for name in ("boot", "generation") if name in known)
        if any(position.get(name) != known.get(name) for name in ("boot", "generation")):
            on_commit(NewWork())
        return position

    def _was_interrupted(self) -> bool:
        """Whether this process closed the connection in order to send another request."""
        return False

    def _request(self, query: Iterable[tuple[str, Any]], wait_s: float = WAIT_S) -> dict[str, Any]:
        path = "/api/v1/news?" + urlencode([*query, ("wait_s", wait_s)])
        answer = self._transport.request(
            "GET", path, None, writes=False, patience_s=0.0, timeout=WAIT_S + MARGIN_S,
            extensions={"trace": self._on_trace},
        )  # fmt: skip
        return answer if isinstance(answer, dict) else {}

    def _on_trace(self, event: str, info: dict[str, Any]) -> None:
        """Keep the socket of the waiting request, so that stop and refresh can close it."""
        if event == "connection.connect_tcp.complete":
            self._socket = info["return_value"].get_extra_info("socket")
            if self._stopping.is_set():
                self._disconnect()

    def _disconnect(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def want_commits(self) -> None:
        """The server answers after any commit."""

    def stop(self) -> None:
        self._stopping.set()
        self._disconnect()


class RemoteWorkListener(RemoteListener):
    """Notices work in the queues from which this process claims. For each task the server wakes one waiting client."""

    def __init__(self, transport: Transport, wanted: Callable[[], WantedWork]) -> None:
        super().__init__(transport)
        self._wanted = wanted
        self._interrupted = threading.Event()

    def _wait_for_commit(self, known: dict[str, Any], on_commit: OnCommit) -> dict[str, Any]:
        self._interrupted.clear()
        queues, group = self._wanted()
        query = [("queue", name) for name in sorted({name for _, name in queues})]
        query.append(("group", "" if group is None else hashlib.sha256("\0".join(group).encode()).hexdigest()[:16]))
        same = [("boot", known["boot"]), ("work", known["work"])] if known.get("queues") == queues else []
        position = self._request([*query, *same])
        woken = position.get("woken")
        if isinstance(woken, str):
            unused = on_commit(NewWork({queue: 1 for queue in queues if queue[1] == woken}))
            if len(unused) == sum(name == woken for _, name in queues):
                # No claimer here waits for it any more: the server wakes another client.
                self._request([*query, ("unused", woken)], wait_s=0.0)
        elif not same or any(position.get(name) != known.get(name) for name in ("boot", "work")):
            on_commit(NewWork(uncounted=queues))
        return {**position, "queues": queues}

    def refresh(self) -> None:
        self._interrupted.set()
        self._disconnect()

    def _was_interrupted(self) -> bool:
        return self._interrupted.is_set()
