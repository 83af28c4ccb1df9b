"""The server process: its socket, signals and shutdown.

Owns the order of a shutdown:

    signal ─▶ no new connections ─▶ streams end, requests finish (grace_s) ─▶ close the database ─▶ exit 0
         └──▶ the worker in the same process, if there is one, drains meanwhile

A second signal stops the server at once. Everything acknowledged is in the database by then.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
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
from onetray.worker.stop_signals import on_signal, stop_signals

if TYPE_CHECKING:
    from onetray.http.services import Services
    from onetray.worker import Worker

logger = logging.getLogger("onetray.http")

SWITCH_S = 0.0005
CLOSE_S = 5.0
"""How long a shutdown waits for the database to close."""
BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Clients can connect at once, and wait until the server is ready."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
    except OSError as e:
        raise InvalidInput(f"{host} is not an address: use another --host ({e.strerror or e})", field="host") from e
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as e:
        listener.close()
        raise InvalidInput(
            f"cannot listen on {host}:{port} ({e.strerror or e}): stop what uses it, or use another --port",
            field="port",
        ) from e
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """A server on one socket, until a signal stops it."""

    def __init__(
        self,
        app: FastAPI,
        config: HttpConfig,
        *,
        worker: Worker | None = None,
        close: Callable[[], None] = lambda: None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        # This class logs start and stop itself.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        super().__init__(
            uvicorn.Config(
                app, log_config=None, access_log=False, server_header=False, proxy_headers=False, ws="none",
                http=Protocol, lifespan="on", timeout_graceful_shutdown=round(config.grace_s),
            )
        )  # fmt: skip
        self._services: Services = app.state.services
        self._http = config
        self._connections = Connections(
            max_connections(config, 0 if worker is None else worker.config.concurrency), config.unsent_bytes
        )
        self._services.streams.cap_by_connections(self._connections.limit)
        self._services.waits.cap_by_connections(self._connections.limit)
        self._worker, self._close, self._ready = worker, close, ready
        self._worker_stopped: threading.Event | None = None

    def run_on(self, listener: socket.socket) -> None:
        """Serve until stopped, and return when everything has ended. Call it in the main thread."""
        asyncio.run(self._until_stopped(listener))

    async def _until_stopped(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(self._http.threads, "onetray-http"))
        handle = on_signal(self.ask_to_stop)
        for number in stop_signals():
            loop.add_signal_handler(number, handle, number)
        if self._worker is not None:
            self._worker.start()
        try:
            await self._serve([listener])
        finally:
            await self._end()

    def ask_to_stop(self) -> None:
        """Stop gracefully; on the second call, at once. Call it on the event loop."""
        self.force_exit, self.should_exit = self.should_exit, True
        if self._worker is not None:
            self._worker.ask_to_stop()
        self._stop_worker()

    def _stop_worker(self) -> None:
        """Let the worker drain while requests finish: it claims no more tasks."""
        if self._worker is not None and self._worker_stopped is None:
            self._worker_stopped = _run_in_thread(self._worker.stop)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Without sockets: Acceptor accepts the connections.
        await super().startup([])
        await asyncio.to_thread(self._services.metrics.event_metrics.begin)
        self.servers += [Acceptor(s, self._connections, self._protocol) for s in sockets or ()]  # type: ignore[misc]
        logger.info(
            "the server listens on %s, with up to %s connections",
            ", ".join(url_of(s) for s in sockets or ()), f"{self._connections.limit:,}",
        )  # fmt: skip
        self._ready()

    def _protocol(self) -> Protocol:
        return Protocol(self.config, self.server_state, self.lifespan.state, self._http, self._connections)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        logger.info("the server was asked to stop: open requests may finish")
        await self._services.close()
        await super().shutdown(sockets)

    async def _end(self) -> None:
        self._stop_worker()
        while self._worker_stopped is not None and not self._worker_stopped.is_set():
            await asyncio.sleep(0.02)
        logger.info("the server has stopped")
        closed, waited_s = _run_in_thread(self._close), 0.0
        while not closed.is_set() and waited_s < CLOSE_S:
            await asyncio.sleep(0.02)
            waited_s += 0.02
        if not closed.is_set():
            # Threads that wait for the database would keep the process alive.
            logger.warning("the database does not respond: exiting without closing its connections")
            logging.shutdown()
            os._exit(0)

    def capture_signals(self) -> None:  # type: ignore[override]
        """Disabled: uvicorn would raise the signal again after the shutdown."""
        raise NotImplementedError("run_on handles signals")


def tune_process() -> None:
    """Set up the interpreter of a process that serves and does nothing else. Call it when everything is loaded."""
    # A thread that returns from the database waits this long for the loop to let it go on. The default, 5 ms, is longer
    # than most transactions.
    sys.setswitchinterval(SWITCH_S)
    # What is loaded now stays: no request waits while the collector looks at it once more.
    gc.collect()
    gc.freeze()


def _run_in_thread(step: Callable[[], object]) -> threading.Event:
    """Call a function in a daemon thread. The event is set when it has returned."""
    done = threading.Event()

    def run() -> None:
        try:
            step()
        except Exception:
            logger.exception("a step of the shutdown failed")
        finally:
            done.set()

    threading.Thread(target=run, name="onetray-stop", daemon=True).start()
    return done
