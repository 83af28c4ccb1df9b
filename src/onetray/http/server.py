"""The server's process: where it listens, what it says at the start, and how it stops.

Owns the socket, the signals and the order of a stop:

    signal ─▶ no new connections ─▶ streams are told, requests end (grace_s) ─▶ the database is closed ─▶ exit 0
         └──▶ the worker in the same process, if there is one, drains meanwhile

A second signal waits for nobody. What was acknowledged is in the database by then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from onetray.config import HttpConfig
from onetray.domain.errors import InvalidInput
from onetray.http.limits.connections import Acceptor, Connections, max_connections
from onetray.http.limits.protocol import Protocol

if TYPE_CHECKING:
    from onetray.http.services import Services
    from onetray.worker import Worker

logger = logging.getLogger("onetray.http")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
CLOSE_S = 5.0
"""How long the closing of the database is waited for at the end."""
BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A socket that others can connect to from now on; they wait until the server is ready."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, proto)
    except OSError as e:
        raise InvalidInput(f"there is no address {host}: give another --host ({e.strerror or e})", field="host") from e
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(BACKLOG)
    except OSError as e:
        found.close()
        raise InvalidInput(
            f"{host}:{port} cannot be listened on ({e.strerror or e}): end what listens there, or give another --port",
            field="port",
        ) from e
    return found


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """One server on one socket, until a signal ends it."""

    def __init__(
        self,
        app: FastAPI,
        config: HttpConfig,
        *,
        worker: Worker | None = None,
        close: Callable[[], None] = lambda: None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        # What it says of its own comings and goings is said here already.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        super().__init__(
            uvicorn.Config(
                app, log_config=None, access_log=False, server_header=False, proxy_headers=False, ws="none",
                http=Protocol, lifespan="on", timeout_graceful_shutdown=round(config.grace_s),
            )
        )  # fmt: skip
        self._desk: Services = app.state.desk
        self._http = config
        self._connections = Connections(
            max_connections(config, 0 if worker is None else worker.config.concurrency), config.unsent_bytes
        )
        self._desk.streams.cap_by_connections(self._connections.limit)
        self._desk.waits.cap_by_connections(self._connections.limit)
        self._worker, self._close, self._ready = worker, close, ready
        self._ended: threading.Event | None = None

    def run_on(self, listening: socket.socket) -> None:
        """Serve until a stop was asked for, and everything has ended. This thread is the process's main one."""
        asyncio.run(self._until_stopped(listening))

    async def _until_stopped(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(self._http.threads, "onetray-http"))
        for number in SIGNALS:
            loop.add_signal_handler(number, self.ask_to_stop)
        if self._worker is not None:
            self._worker.start()
        try:
            await self._serve([listening])
        finally:
            await self._end()

    def ask_to_stop(self) -> None:
        """Stop gracefully; asked a second time, at once. On the loop."""
        if self.should_exit:
            self.force_exit = True
            if self._worker is not None:
                self._worker.ask_to_stop()
        self.should_exit = True
        self._stop_worker()

    def _stop_worker(self) -> None:
        """Have the worker claim no more from now on: it drains while requests end."""
        if self._worker is not None and self._ended is None:
            self._ended = _begin(self._worker.stop)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Without a socket: connections are accepted here.
        await super().startup([])
        await asyncio.to_thread(self._desk.metrics.event_metrics.begin)
        self.servers += [Acceptor(s, self._connections, self._protocol) for s in sockets or ()]  # type: ignore[misc]
        logger.info(
            "the server listens on %s, for %s connections at once",
            ", ".join(url_of(s) for s in sockets or ()), f"{self._connections.limit:,}",
        )  # fmt: skip
        self._ready()

    def _protocol(self) -> Protocol:
        return Protocol(self.config, self.server_state, self.lifespan.state, self._http, self._connections)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        logger.info("the server was asked to stop: requests under way may end")
        await self._desk.close()
        await super().shutdown(sockets)

    async def _end(self) -> None:
        self._stop_worker()
        while self._ended is not None and not self._ended.is_set():
            await asyncio.sleep(0.02)
        logger.info("the server has stopped")
        closed, waited_s = _begin(self._close), 0.0
        while not closed.is_set() and waited_s < CLOSE_S:
            await asyncio.sleep(0.02)
            waited_s += 0.02
        if not closed.is_set():
            # The threads that wait for the database would hold up the end of the process.
            logger.warning("the database does not answer: its connections are left to it")
            logging.shutdown()
            os._exit(0)

    def capture_signals(self) -> None:  # type: ignore[override]
        """Not here: uvicorn would end the process by the signal that it was stopped by."""
        raise NotImplementedError("run_on looks after signals")


def _begin(step: Callable[[], object]) -> threading.Event:
    """Take a step in a thread that nobody has to wait for; tells when it was taken."""
    taken = threading.Event()

    def take() -> None:
        try:
            step()
        except Exception:
            logger.exception("a step of the stop failed")
        finally:
            taken.set()

    threading.Thread(target=take, name="onetray-stop", daemon=True).start()
    return taken
