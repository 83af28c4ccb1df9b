"""The feed under many writers that commit late and roll back: nothing missed, nothing twice, each job in order."""

import random
import threading
import time
from dataclasses import dataclass, field

import pytest

from onetray.domain.commands import Claim, Command, Submit, Succeed
from onetray.domain.task import Event
from onetray.engine import Engine
from onetray.store.event_log import BLOCK
from onetray.store.postgres import PostgresStore
from tests.support.engines import must_verify
from tests.support.waits import wait_until
from tests.support.writers import RolledBack, Writer, writing

WRITERS = 32
READERS = 4
EVENTS = 5_000
PATIENCE_S = 120


@dataclass
class Reader:
    """Follows the feed from a cursor until told where the log ends."""

    start: int
    got: list[Event] = field(default_factory=list)

    def follow(self, engine: Engine, done: threading.Event) -> None:
        for event in engine.feed.follow(self.start, stop=done):
            self.got.append(event)


@dataclass
class Naive:
    """What `id > cursor` alone would have got."""

    got: list[int] = field(default_factory=list)

    def follow(self, engine: Engine, done: threading.Event) -> None:
        cursor = 0
        while not done.is_set():
            rows = engine.store.read_sql("SELECT id FROM onetray.event WHERE id > :after ORDER BY id", after=cursor)
            self.got += [id for (id,) in rows]
            cursor = self.got[-1] if self.got else 0
            done.wait(0.01)


@pytest.mark.timeout(240)
def test_the_feed_misses_nothing_under_writers_that_commit_late_and_roll_back(own_url: str) -> None:
    store = PostgresStore(own_url, connections=WRITERS + READERS + 4)
    store.migrate()
    engine = Engine(store)
    engine.submit("mail")
    enough, done = threading.Event(), threading.Event()
    writers = [threading.Thread(target=write, args=(engine, i, enough), daemon=True) for i in range(WRITERS)]
    readers, naive = [Reader(0)], Naive()
    following = [start(readers[0], engine, done), start(naive, engine, done)]
    for thread in writers:
        thread.start()
    chance = random.Random(7)

    def enough_is_written() -> bool:
        count = committed(engine)
        if len(readers) < READERS and count > len(readers) * EVENTS / READERS:
            readers.append(Reader(chance.randrange(newest(engine))))
            following.append(start(readers[-1], engine, done))
        return count >= EVENTS and len(readers) == READERS

    wait_until(enough_is_written, PATIENCE_S)
    enough.set()
    for thread in writers:
        thread.join(PATIENCE_S)
    written = [id for (id,) in store.read_sql("SELECT id FROM onetray.event ORDER BY id")]
    wait_until(lambda: all(r.got and r.got[-1].id == written[-1] for r in readers), PATIENCE_S)
    done.set()
    for thread in following:
        thread.join(PATIENCE_S)
    must_verify(engine)
    blocks = 1 + (newest(engine) - 1) // BLOCK
    engine.close()

    assert len(written) >= EVENTS
    assert len({(id - 1) // BLOCK for id in written}) < blocks, "no writer rolled back: the test does not test"
    assert len(readers) == READERS
    for reader in readers:
        assert [e.id for e in reader.got] == [id for id in written if id > reader.start]
        in_order_for_each_job(reader.got)
    assert len(naive.got) < len(written), "the naive reader missed nothing: the test does not test"


def start(reader: Reader | Naive, engine: Engine, done: threading.Event) -> threading.Thread:
    thread = threading.Thread(target=reader.follow, args=(engine, done), daemon=True)
    thread.start()
    return thread


def committed(engine: Engine) -> int:
    return int(engine.store.read_sql("SELECT coalesce(sum(size), 0) FROM onetray.event_batch")[0][0])


def newest(engine: Engine) -> int:
    """The first id of the last block that was taken, also by a writer that rolled back."""
    return int(engine.store.read_sql("SELECT last_value FROM onetray.event_id")[0][0])


def write(engine: Engine, number: int, enough: threading.Event) -> None:
    """Submit, claim and finish tasks of a queue of one's own, in transactions that stay open for a moment."""
    chance = random.Random(number)
    queue = f"queue-{number}"
    held: list[tuple[int, int]] = []
    while not enough.is_set():
        kept: list[tuple[int, int]] = []
        with writing(engine) as writer:
            kept = step(writer, queue, held, chance)
            # The ids are taken; the commit comes late, or never.
            time.sleep(chance.uniform(0, 0.008))
            if chance.random() < 0.15:
                kept = held
                raise RolledBack
        held = kept


def step(writer: Writer, queue: str, held: list[tuple[int, int]], chance: random.Random) -> list[tuple[int, int]]:
    if held:
        commands: list[Command] = [Succeed(task=key, fence=fence) for key, fence in held]
        assert all(v.ok for v in writer.run(commands))
        return []
    writer.run([Submit(kind="mail", queue=queue) for _ in range(chance.randrange(1, 12))])
    [claimed] = writer.run([Claim(queue=queue, worker=queue, limit=20)])
    return [(a.key, a.fence) for a in claimed.value]


def in_order_for_each_job(events: list[Event]) -> None:
    versions: dict[str, int] = {}
    for event in events:
        assert event.version is not None
        before = versions.get(event.entity_id)
        assert before is None or event.version == before + 1, event
        versions[event.entity_id] = event.version
