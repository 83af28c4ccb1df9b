"""Many open streams at a server process of its own: what they cost."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from onetray.engine import Engine
from onetray.store import open_store
from tests.support.live import Stream, stream

TICKS = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """What a process uses."""

    rss_mb: float
    files: int
    cpu_s: float

    @classmethod
    def of(cls, pid: int) -> Usage:
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        files = len(os.listdir(f"/proc/{pid}/fd"))
        return cls(int(lines["VmRSS"].split()[0]) / 1024, files, (int(stat[11]) + int(stat[12])) / TICKS)


@dataclass
class Held:
    """How it went."""

    streams: int
    before: Usage
    open: Usage
    idle_share: float
    one_event_ms: float
    after: Usage
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.streams} streams: {self.before.rss_mb:.0f} → {self.open.rss_mb:.0f} MB "
            f"({(self.open.rss_mb - self.before.rss_mb) * 1024 / self.streams:.0f} KB each), "
            f"{self.before.files} → {self.open.files} → {self.after.files} file descriptors, "
            f"{self.idle_share:.1%} of a core while idle, an event to all of them within {self.one_event_ms:.0f} ms"
        )


def hold_open(url: str, count: int, idle_s: float) -> Held:
    store = open_store(url)
    store.migrate()
    engine = Engine(store)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.open_streams", url], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        return asyncio.run(_hold(engine, int(server.stdout.readline()), server.pid, count, idle_s))
    finally:
        server.terminate()
        server.wait(60)
        engine.close()


async def _hold(engine: Engine, port: int, pid: int, count: int, idle_s: float) -> Held:
    """Half of them follow the feed, half one job that stays in its queue."""
    id_ = engine.submit("mail").id
    async with stream(port, "/api/v1/feed/stream") as first:
        await anext(first.frames())
    before = Usage.of(pid)
    async with AsyncExitStack() as held:
        streams: list[Stream] = []
        for i in range(count):
            path = "/api/v1/feed/stream" if i % 2 else f"/api/v1/jobs/{id_}/stream"
            streams.append(await held.enter_async_context(stream(port, path)))
        await asyncio.gather(*(anext(one.frames()) for one in streams))
        opened, began = Usage.of(pid), time.monotonic()
        await asyncio.sleep(idle_s)
        share = (Usage.of(pid).cpu_s - opened.cpu_s) / (time.monotonic() - began)
        began = time.monotonic()
        await asyncio.to_thread(engine.set_priority, str(id_), 5)
        told = await asyncio.gather(*(one.events(1) for one in streams))
        took_ms = (time.monotonic() - began) * 1000
    await asyncio.sleep(1)
    faults = [f"a stream was told {one}" for one in told if one[0].data["type"] != "task.priority_set"]
    return Held(count, before, opened, share, took_ms, Usage.of(pid), faults)


def main(url: str) -> None:
    """The server process: it says its port, and serves until it is ended."""
    from tests.support.live import serving

    with Engine.open(url) as engine, serving(engine) as live:
        print(live.port, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])
