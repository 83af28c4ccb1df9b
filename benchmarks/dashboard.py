"""What the dashboard costs: the time of each page with many jobs, and the CPU time of many open ones under load.

Owns what is asked of a real server, how the pages of the registry become URLs, and the load beside open pages. The
database is that of mixed_crowd.py.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from urllib.parse import urlencode

import httpx2

from benchmarks.core import claim_and_report, must_pass, open_engine
from benchmarks.figures import percentile
from benchmarks.host import Host, cpu_s
from benchmarks.http import our_server, process
from benchmarks.mixed_crowd import KINDS, QUEUES, fill_mixed
from onetray.dashboard.pages import PAGES, load_views
from onetray.domain.commands import Submit
from onetray.engine import Engine

Figures = dict[str, dict[str, float]]
HTML = {"accept": "text/html"}
LIVE_QUEUE, LIVE_KIND = "live", "live.job"
LIVE_MARK = "data-live="
TICK_S = 0.1
SETTLE_S = 3.0
LOOKS = 10
"""How often it is measured how soon a page shows something."""
PATIENCE_S = 60.0
FILTERS = {
    "jobs": {
        "of a state": {"state": "dead_lettered"},
        "of a kind": {"kind": KINDS[0]},
        "of a queue": {"queue": QUEUES[1]},
        "with a label": {"label": "region=eu"},
        "of a state and a kind": {"state": "queued", "kind": KINDS[3]},
        "that nothing matches": {"state": "running", "kind": "no.such"},
    },
}
"""Further looks at a page, by its name."""


def views(host: Host, store: str, jobs: int, requests: int, say: Callable[[str], None]) -> Figures:
    """Milliseconds from request to whole answer of each page, one request at a time.

    `cpu_ms` is the CPU time of the server and the database for each: what else the machine does matters less for it.
    """
    with host.database(store) as url:
        fill_mixed(store, url, jobs, say)
        with open_engine(url) as engine:
            pages = dict(_pages(engine))
        with process(our_server(url)) as (pid, port), _client(port) as client:

            def used_s() -> float:
                return cpu_s(pid) + host.server_cpu_s(store)

            found = {}
            for name, path in pages.items():
                found[name] = _time(client, path, requests, used_s)
                say(f"{store}: {name}: {found[name]}")
    return found


def _time(client: httpx2.Client, path: str, requests: int, used_s: Callable[[], float]) -> dict[str, float]:
    # The first one compiles the template and opens connections.
    first_ms, _ = _get(client, path)
    used = used_s()
    answers = [_get(client, path) for _ in range(requests)]
    took = [ms for ms, _ in answers]
    return {
        "p50_ms": round(median(took), 1), "p95_ms": round(percentile(took, 95), 1),
        "cpu_ms": round((used_s() - used) / requests * 1000, 1), "first_ms": round(first_ms, 1),
        "kib": round(answers[0][1] / 1024, 1),
    }  # fmt: skip


def _get(client: httpx2.Client, path: str) -> tuple[float, int]:
    """The milliseconds and the bytes of a page."""
    began = time.perf_counter()
    answer = client.get(path)
    took_ms = (time.perf_counter() - began) * 1000
    if answer.status_code != 200:
        raise RuntimeError(f"{path} was answered with {answer.status_code}: {answer.text[:500]}")
    return took_ms, len(answer.content)


def _pages(engine: Engine) -> Iterator[tuple[str, str]]:
    """Every page, with something to show where its path has a parameter."""
    load_views()
    samples = _samples(engine)
    for page in PAGES.values():
        if "{" not in page.path:
            yield page.name, page.path
            for words, query in FILTERS.get(page.name, {}).items():
                yield f"{page.name} {words}", f"{page.path}?{urlencode(query)}"
        elif page.path.startswith("/ui/bulk/"):
            yield page.name, page.path.format(id=engine.bulks(limit=1)[0].id)
        elif page.path.startswith("/ui/waiting/stage/"):
            yield page.name, page.path.format(id=_newest(engine, "stage", "waiting"))
        elif page.path.startswith("/ui/waiting/task/"):
            yield page.name, page.path.format(id=_newest(engine, "task", "waiting_input"))
        else:
            for name, id in samples.items():
                yield f"{page.name}: {name}", page.path.format(id=id, part="input")


def _samples(engine: Engine) -> dict[str, str]:
    """The id of a job of each sort."""
    states = ("succeeded", "dead_lettered", "queued")
    return {state: _newest(engine, "task", state) for state in states} | {"flow": _newest(engine, "flow", "running")}


def _newest(engine: Engine, table: str, state: str) -> str:
    query = f"SELECT CAST(id AS text) FROM onetray.{table} WHERE state = '{state}' ORDER BY key DESC LIMIT 1"
    return str(engine.store.read_sql(query)[0][0])


def live(
    host: Host, store: str, jobs: int, dashboards: int, rate: int, seconds: float, say: Callable[[str], None]
) -> dict[str, float]:
    """Cores that the server uses while jobs pass at a steady rate: without pages, with open ones, after they are
    closed.

    `seen_p50_ms` is the time from a commit to the arrival of what it changes on an open page.
    """
    with host.database(store) as url:
        fill_mixed(store, url, jobs, say)
        load_views()
        with open_engine(url) as engine, process(our_server(url)) as (pid, port), _client(port) as client:
            # Which also loads what is loaded late. The first page is the one that is looked at.
            menu = [page.path for page in PAGES.values() if page.nav is not None]
            paths = ["/", *(path for path in menu if LIVE_MARK in client.get(path).text)]
            with _load(engine, rate):
                say(f"{store}: {rate} jobs a second, without pages, then with {dashboards} open ones, then without")
                before = _cores(pid, seconds)
                with _open_pages(port, [paths[n % len(paths)] for n in range(dashboards)]) as received:
                    during = _cores(pid, seconds)
                    seen = [_seen_s(engine, received) for _ in range(LOOKS)]
                after = _cores(pid, seconds)
    return {
        "cores_without": round(before, 3), "cores_open": round(during, 3), "cores_closed": round(after, 3),
        "cores_of_pages": round(during - before, 3), "messages": received.count,
        "seen_p50_ms": round(median(seen) * 1000), "seen_max_ms": round(max(seen) * 1000),
    }  # fmt: skip


def _cores(pid: int, seconds: float) -> float:
    """The share of a core that a process uses, after what changed it has settled."""
    time.sleep(SETTLE_S)
    began, cpu = time.perf_counter(), cpu_s(pid)
    time.sleep(seconds)
    return (cpu_s(pid) - cpu) / (time.perf_counter() - began)


@contextmanager
def _load(engine: Engine, rate: int) -> Iterator[None]:
    """Jobs that are submitted and done at a steady rate, in this process."""
    ended = threading.Event()

    def work() -> None:
        each = max(1, int(rate * TICK_S))
        while not ended.wait(TICK_S):
            must_pass(engine, [Submit(kind=LIVE_KIND, queue=LIVE_QUEUE) for _ in range(each)])
            claim_and_report(engine, each, LIVE_QUEUE)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(PATIENCE_S)


class Received:
    """What the open pages have received."""

    def __init__(self) -> None:
        self.count = 0
        self._text = ""
        self._news = threading.Condition()

    def add(self, text: str, keep: bool) -> None:
        with self._news:
            self.count += text.count("event: fragments")
            if keep:
                self._text = (self._text + text)[-200_000:]
                self._news.notify_all()

    def wait_for(self, words: str) -> bool:
        with self._news:
            return self._news.wait_for(lambda: words in self._text, PATIENCE_S)


@contextmanager
def _open_pages(port: int, paths: list[str]) -> Iterator[Received]:
    """Streams as browsers hold them open, each of one page. The first one's text is kept."""
    received, stop, opened = Received(), threading.Event(), threading.Barrier(2)

    async def watch(path: str, keep: bool) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET /ui/live?{urlencode({'page': path})} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        writer.write(f"{head}accept: text/event-stream\r\n\r\n".encode())
        status = await reader.readline()
        assert b" 200 " in status, status
        while chunk := await reader.read(65_536):
            received.add(chunk.decode(errors="replace"), keep)

    async def all_of_them() -> None:
        tasks = [asyncio.create_task(watch(path, not n)) for n, path in enumerate(paths)]
        await asyncio.sleep(0)
        opened.wait()
        await asyncio.to_thread(stop.wait)
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()

    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(all_of_them())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    opened.wait()
    try:
        yield received
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    if failed:
        raise failed[0]


def _seen_s(engine: Engine, received: Received) -> float:
    """Seconds until an open start page shows a queue that is new."""
    queue = f"seen-{time.monotonic_ns()}"
    must_pass(engine, [Submit(kind=LIVE_KIND, queue=queue)])
    began = time.perf_counter()
    if not received.wait_for(queue):
        raise RuntimeError("an open page did not show a new queue")
    return time.perf_counter() - began


@contextmanager
def _client(port: int) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, trust_env=False, headers=HTML) as found:
        yield found
