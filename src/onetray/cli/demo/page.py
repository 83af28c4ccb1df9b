"""The dashboard on the demo's own jobs: `onetray demo --page`.

Owns the server, in a thread of the demo, and the browser that is opened. Without a browser the URL is printed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import webbrowser
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from onetray.cli.serve import server_module
from onetray.config import HttpConfig

if TYPE_CHECKING:
    from onetray.engine import Engine

START_S, STOP_S = 60.0, 10.0
THREADS = 4


@contextmanager
def serve_page(engine: Engine) -> Iterator[str]:
    """Serve the dashboard on a free port of the loopback interface. Yields its URL."""
    http_server = server_module()
    from onetray.http.app import build

    config = HttpConfig(port=0, dialects=(), threads=THREADS, grace_s=1.0)
    listener, ready = http_server.listen(config.host, config.port), threading.Event()
    server = http_server.Server(build(engine, config), config, ready=ready.set)

    async def serve() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "onetray-page"))
        await server._serve([listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="onetray-page", daemon=True)
    thread.start()
    try:
        if not ready.wait(START_S):
            raise TimeoutError(f"the page was not served within {START_S:g} s")
        yield http_server.url_of(listener)
    finally:
        server.should_exit = True
        thread.join(STOP_S)


def open_browser(url: str) -> None:
    """Show a page in the user's browser, if there is one that has a window."""
    if has_browser():
        # Some browsers return only when they are closed.
        threading.Thread(target=_open, args=(url,), name="onetray-browser", daemon=True).start()


def has_browser() -> bool:
    """Whether a browser can open a window. One for terminals would take over this one."""
    names = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform == "darwin" or any(os.environ.get(name) for name in names)


def _open(url: str) -> None:
    with suppress(Exception):
        webbrowser.open(url)


def wait_for_interrupt() -> None:
    """Wait until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        threading.Event().wait()
