"""Hearing from a server that something was written: requests that wait, while anybody here does.

Owns the ears of the wake-up: one for all that is written, and one for work in the queues that are claimed from here.
They carry no data and may be late or absent: whoever waits looks for itself, too.
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
from onetray.notify.base import Listener, WantedWork, WorkListener
from onetray.notify.new_work import NewWork, Queue, everywhere
from onetray.remote.transport import Transport

logger = logging.getLogger("onetray.remote")

WAIT_S = 20.0
"""How long the server may keep the request when it has no news."""
MARGIN_S = 10.0
EVERY_S = 0.01
FULL_S = 1.0
"""How often it asks a server that has no place for another request that waits."""
BACKOFF_S = (0.2, 5.0)


class RemoteSource:
    """What the wake-up needs of a place where things are written: here, a server."""

    alone = notifies = False
    notify_every_s = 0.0

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.on_commit: list[Callable[[NewWork[int], bool], None]] = []

    def notify(self, work: NewWork[int]) -> None:
        """The server tells the others."""

    def named(self, work: NewWork[int]) -> NewWork[Queue]:
        """Queues have no numbers here."""
        return everywhere()

    def with_work(self, queues: Collection[Queue]) -> Collection[Queue]:
        """Only the server knows."""
        return queues

    def listener(self) -> Listener:
        return RemoteListener(self._transport.another())

    def work_listener(self, wanted: Callable[[], WantedWork]) -> WorkListener:
        return RemoteWorkListener(self._transport.another(), wanted)


class RemoteListener:
    """Hears that anything was written."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._stopping = threading.Event()
        self._socket: socket.socket | None = None
        self.hears = False

    def run(self, heard: Callable[[NewWork[Queue]], set[Queue]], wanted: threading.Event) -> None:
        # Kept while nobody waits: what was written between a look and the wait is heard, too.
        known: dict[str, Any] = {}
        wait = BACKOFF_S[0]
        while not self._stopping.is_set():
            wanted.wait()
            if self._stopping.is_set():
                break
            try:
                known = self._hear(known, heard)
            except OnetrayError as e:
                if self._was_interrupted():
                    continue
                logger.debug("no news from the server, looking instead: %s", e)
                self.hears = False
                self._stopping.wait(wait)
                wait = min(2 * wait, BACKOFF_S[1])
                continue
            self.hears, wait = bool(known.get("heard")), BACKOFF_S[0]
            self._stopping.wait(FULL_S if known.get("full") else EVERY_S)
        self._transport.close()

    def _hear(self, known: dict[str, Any], heard: Callable[[NewWork[Queue]], set[Queue]]) -> dict[str, Any]:
        """Wait for the next news, and tell of them."""
        news = self._ask((name, known[name]) for name in ("boot", "generation") if name in known)
        if any(news.get(name) != known.get(name) for name in ("boot", "generation")):
            heard(NewWork())
        return news

    def _was_interrupted(self) -> bool:
        """Whether the request was ended from here, to be asked again."""
        return False

    def _ask(self, seen: Iterable[tuple[str, Any]], wait_s: float = WAIT_S) -> dict[str, Any]:
        path = "/api/v1/news?" + urlencode([*seen, ("wait_s", wait_s)])
        told = self._transport.ask(
            "GET", path, None, writes=False, patience_s=0.0, timeout=WAIT_S + MARGIN_S,
            extensions={"trace": self._note},
        )  # fmt: skip
        return told if isinstance(told, dict) else {}

    def _note(self, event: str, info: dict[str, Any]) -> None:
        """Remember the connection that waits, so that it can be ended."""
        if event == "connection.connect_tcp.complete":
            self._socket = info["return_value"].get_extra_info("socket")
            if self._stopping.is_set():
                self._hang_up()

    def _hang_up(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self._stopping.set()
        self._hang_up()


class RemoteWorkListener(RemoteListener):
    """Hears of work in the queues that are claimed from here. The server wakes one of those who wait for each task."""

    def __init__(self, transport: Transport, wanted: Callable[[], WantedWork]) -> None:
        super().__init__(transport)
        self._wanted = wanted
        self._interrupted = threading.Event()

    def _hear(self, known: dict[str, Any], heard: Callable[[NewWork[Queue]], set[Queue]]) -> dict[str, Any]:
        self._interrupted.clear()
        queues, group = self._wanted()
        asked = [("queue", name) for name in sorted({name for _, name in queues})]
        asked.append(("group", "" if group is None else hashlib.sha256("\0".join(group).encode()).hexdigest()[:16]))
        same = [("boot", known["boot"]), ("work", known["work"])] if known.get("queues") == queues else []
        news = self._ask([*asked, *same])
        woken = news.get("woken")
        if isinstance(woken, str):
            unused = heard(NewWork({queue: 1 for queue in queues if queue[1] == woken}))
            if len(unused) == sum(name == woken for _, name in queues):
                # Nobody here has a place for it: somebody else may.
                self._ask([*asked, ("unused", woken)], wait_s=0.0)
        elif not same or any(news.get(name) != known.get(name) for name in ("boot", "work")):
            heard(NewWork(uncounted=queues))
        return {**news, "queues": queues}

    def ask_again(self) -> None:
        self._interrupted.set()
        self._hang_up()

    def _was_interrupted(self) -> bool:
        return self._interrupted.is_set()
