"""A real server on a free loopback port, in a thread of this process or in a process of its own."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from onetray.engine import Engine
from onetray.http.app import build
from tests.support.prepared import PreparedProcess
from tests.support.waits import wait_until

PATIENCE_S = 60.0


class Served(uvicorn.Server):
    """A server in a thread. Requests that wait for news are let go when it stops."""

    def __init__(self, app: FastAPI, port: int = 0) -> None:
        self._app, self._listener = app, listener(port)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        super().__init__(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=2))
        self._thread = threading.Thread(target=self.run, args=([self._listener],), daemon=True)

    def begin(self) -> None:
        self._thread.start()
        wait_for_port(self.port)

    def end(self) -> None:
        self._app.state.services.stopping = self.should_exit = True
        self._app.state.services.waiting.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server has not stopped"


def listener(port: int = 0) -> socket.socket:
    # By its number, or asyncio would leave Nagle on: an answer in two writes would take 40 ms.
    found = socket.socket(proto=socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", port))
    return found


@contextmanager
def served(engine: Engine, port: int = 0) -> Iterator[Served]:
    """A server of this engine. The engine stays the caller's."""
    server = Served(build(engine), port)
    server.begin()
    try:
        yield server
    finally:
        server.end()


class ServerProcess:
    """A server in a process of its own, which can be killed and started again on the same port."""

    def __init__(self, database: str) -> None:
        self._database = database
        with listener() as found:
            self.port = found.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: PreparedProcess | None = None

    def start(self) -> None:
        self._process = PreparedProcess("tests.support.servers", self._database, str(self.port))
        wait_for_port(self.port)

    def kill(self) -> None:
        """As the kernel does it: without a word."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def wait_for_port(port: int) -> None:
    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return True
        return False

    wait_until(listens, PATIENCE_S)


def main(database: str, port: str) -> None:
    with Engine.open(database) as engine:
        engine.janitor().start()
        uvicorn.run(build(engine), host="127.0.0.1", port=int(port), log_level="error", lifespan="off")


if __name__ == "__main__":
    main(*sys.argv[1:])
