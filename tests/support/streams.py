"""Clients of streams that are cut off at random and come back, while jobs run; what each was told is compared.

feed clients    all events, those of one type, those of one kind: against the log, from its beginning
job clients     one job after the other, natively and as so1: against the job's events and lines
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from onetray.domain import commands as c
from onetray.domain.task import Event
from onetray.engine import Engine
from tests.support.live import Frame, stream

KINDS = ("mail", "sms", "fax")
BATCH = 20
LINES = 3
WRITERS = 4


@dataclass
class Outcome:
    """What became of all clients."""

    faults: list[str] = field(default_factory=list)
    cuts: int = 0
    told: int = 0
    jobs_followed: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.told} events and lines told, {self.cuts} times cut off, {self.jobs_followed} jobs followed "
            f"to their end, {self.seconds:.0f} s"
        )


@dataclass
class Field:
    """What the clients share."""

    engine: Engine
    port: int
    jobs: list[str] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    written: threading.Event = field(default_factory=threading.Event)
    log: list[tuple[Event, str]] = field(default_factory=list)
    """All events with the kinds of their tasks, once everything is written."""
    outcome: Outcome = field(default_factory=Outcome)


def run_streams(engine: Engine, port: int, *, clients: int, jobs: int, seed: int, limit_s: float = 60.0) -> Outcome:
    """Let clients follow while jobs are done. The server needs short heartbeats: clients end at one."""
    ground = Field(engine, port)
    began = time.monotonic()
    asyncio.run(asyncio.wait_for(_all(ground, clients, jobs, seed), limit_s))
    ground.outcome.seconds = time.monotonic() - began
    return ground.outcome


async def _all(ground: Field, clients: int, jobs: int, seed: int) -> None:
    following = [asyncio.create_task(_client(ground, i, jobs, random.Random(f"{seed}.{i}"))) for i in range(clients)]
    await asyncio.to_thread(_work, ground, jobs)
    await asyncio.gather(*following)


def _work(ground: Field, jobs: int) -> None:
    """Have them all done by several writers at once: ids of events become visible in the order of the commits."""
    share = -(-jobs // WRITERS)
    writers = [
        threading.Thread(target=_write, args=(ground, f"q{i}", min(share, jobs - share * i))) for i in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    cursor = 0
    while events := (page := ground.engine.feed.read(cursor, 10_000)).events:
        ground.log += [(e, ground.kinds[e.entity_id]) for e in events]
        cursor = page.next_cursor
    if len(ground.log) != 4 * jobs:
        ground.outcome.faults.append(f"{len(ground.log)} events were written of {jobs} jobs")
    ground.written.set()


def _write(ground: Field, queue: str, jobs: int) -> None:
    """Submit and do jobs, in batches, with some lines each."""
    engine = ground.engine
    for start in range(0, jobs, BATCH):
        kinds = [KINDS[i % len(KINDS)] for i in range(start, min(start + BATCH, jobs))]
        made = [v.unwrap().id for v in engine.run([c.Submit(kind=kind, queue=queue) for kind in kinds])]
        ground.kinds.update(zip(made, kinds, strict=True))
        ground.jobs += made
        claimed = engine.claim(queue, worker=queue, limit=BATCH)
        engine.run([c.Start(**c.ticket(a)) for a in claimed])
        engine.run([c.Log(lines=("a line",) * LINES, **c.ticket(a)) for a in claimed])
        for verdict in engine.run([c.Succeed(started=True, **c.ticket(a)) for a in claimed]):
            verdict.unwrap()


async def _client(ground: Field, number: int, jobs: int, chance: random.Random) -> None:
    kind = KINDS[number % len(KINDS)]
    most = max(2, jobs // 3)
    match number % 5:
        case 0:
            await _follow_feed(ground, "", lambda e, k: True, chance, most)
        case 1:
            await _follow_feed(ground, "&types=task.succeeded", lambda e, k: e.type == "task.succeeded", chance, most)
        case 2:
            await _follow_feed(ground, f"&kind={kind}", lambda e, k: k == kind, chance, most)
        case 3:
            await _follow_jobs(ground, "/api/v1/jobs/{}/stream", _native_faults, chance)
        case _:
            await _follow_jobs(ground, "/api/jobs/{}/events", _so1_faults, chance)


async def _follow_feed(
    ground: Field, wanted: str, fits: Callable[[Event, str], bool], chance: random.Random, most: int
) -> None:
    got: list[int] = []
    last: str | None = None
    expected: list[int] | None = None
    while expected is None or len(got) < len(expected):
        left = chance.randint(1, most)
        async with stream(ground.port, f"/api/v1/feed/stream?cursor=0{wanted}", last) as one:
            async for frame in one.frames(light=True):
                last = frame.id or last
                if frame.event in ("bye", "resync"):
                    break
                if frame.event is not None:
                    got.append(int(frame.id or 0))
                    left -= 1
                if expected is None and ground.written.is_set():
                    expected = [e.id for e, kind in ground.log if fits(e, kind)]
                if left == 0 or (expected is not None and len(got) >= len(expected)):
                    break
        ground.outcome.cuts += 1
    ground.outcome.told += len(got)
    if got != expected:
        ground.outcome.faults.append(f"feed{wanted}: {_difference(got, expected)}")


def _difference(got: list[int], expected: list[int]) -> str:
    missing, more = sorted(set(expected) - set(got)), sorted(set(got) - set(expected))
    return (
        f"{len(got)} of {len(expected)} told, {len(got) - len(set(got))} twice, missing {missing[:5]}, "
        f"strange {more[:5]}, in order: {got == sorted(got)}"
    )


Check = Callable[[Engine, str, list[Frame]], str | None]


async def _follow_jobs(ground: Field, path: str, faults: Check, chance: random.Random) -> None:
    while True:
        over = ground.written.is_set()
        if ground.jobs:
            # Mostly new ones: their lives are still before them.
            id_ = ground.jobs[-chance.randint(1, min(len(ground.jobs), 2 * BATCH))]
            got = await _follow_job(ground, path.format(id_), chance)
            ground.outcome.told += len(got)
            ground.outcome.jobs_followed += 1
            fault = await asyncio.to_thread(faults, ground.engine, id_, got)
            if fault:
                ground.outcome.faults.append(f"{path.format(id_)}: {fault}")
        else:
            await asyncio.to_thread(ground.engine.wake.wait, ground.engine.wake.generation, 0.05)
        if over:
            return


async def _follow_job(ground: Field, path: str, chance: random.Random) -> list[Frame]:
    """Everything that is told of a job up to its end, over as many connections as it takes."""
    got: list[Frame] = []
    last: str | None = None
    while True:
        left = chance.randint(1, 8)
        async with stream(ground.port, path, last) as one:
            if one.status == 204:
                return got
            async for frame in one.frames():
                last = frame.id or last
                if frame.event is not None:
                    got.append(frame)
                    left -= 1
                if left == 0:
                    break
            else:
                return got
        ground.outcome.cuts += 1


def _native_faults(engine: Engine, id_: str, got: list[Frame]) -> str | None:
    states = [f.data["id"] for f in got if f.event == "status"]
    lines = [f.data["cursor"] for f in got if f.event == "log"]
    if states != [e.id for e in engine.events(id_)] or lines != [line.cursor for line in engine.logs(id_)]:
        return f"states {states}, lines {lines}"
    return None if got[-1].event == "status" else "its end was not told last"


def _so1_faults(engine: Engine, id_: str, got: list[Frame]) -> str | None:
    states = [f.data["state"] for f in got if f.event == "status"]
    lines = [f.data["cursor"] for f in got if f.event == "log"]
    late = len(got) == 1
    if states != ["pending", "running", "success"][-len(states) :] or states[-1:] != ["success"]:
        return f"states {states}"
    if lines != ([] if late else [line.cursor for line in engine.logs(id_)]):
        return f"lines {lines}"
    return None
