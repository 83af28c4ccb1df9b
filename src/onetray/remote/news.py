"""Hearing from a server that something was written: one request that waits, while anybody here does.

Owns the ear of the wake-up. It carries no data and may be late or absent: whoever waits looks for itself, too.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from onetray.errors import OnetrayError
from onetray.remote.transport import Transport
from onetray.store.ears import Ear

logger = logging.getLogger("onetray.remote")

WAIT_S = 20.0
"""How long the server may keep the request when it has no news."""
MARGIN_S = 10.0
EVERY_S = 0.01
BACKOFF_S = (0.2, 5.0)


class Elsewhere:
    """What the wake-up needs of a place where things are written: here, a server."""

    alone = tells = False
    news_every_s = 0.0

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.on_commit: list[Callable[[bool, bool], None]] = []

    def tell(self, work: bool) -> None:
        """The server tells the others."""

    def ear(self) -> Ear:
        return NewsEar(self._transport.another())


class NewsEar:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._stopping = threading.Event()
        self._socket: socket.socket | None = None
        self.hears = False

    def run(self, heard: Callable[[bool], None], wanted: threading.Event) -> None:
        # Kept while nobody waits: what was written between a look and the wait is heard, too.
        known: dict[str, Any] = {}
        wait = BACKOFF_S[0]
        while not self._stopping.is_set():
            wanted.wait()
            if self._stopping.is_set():
                break
            try:
                news = self._ask(known)
            except OnetrayError as e:
                logger.debug("no news from the server, looking instead: %s", e)
                self.hears = False
                self._stopping.wait(wait)
                wait = min(2 * wait, BACKOFF_S[1])
                continue
            self.hears, wait = bool(news.get("heard")), BACKOFF_S[0]
            same = news.get("boot") == known.get("boot")
            if not same or news.get("generation") != known.get("generation"):
                heard(not same or news.get("work") != known.get("work"))
            known = news
            self._stopping.wait(EVERY_S)
        self._transport.close()

    def _ask(self, known: dict[str, Any]) -> dict[str, Any]:
        seen: dict[str, Any] = {name: known[name] for name in ("boot", "generation", "work") if name in known}
        path = "/api/v1/news?" + urlencode({**seen, "wait_s": WAIT_S})
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
