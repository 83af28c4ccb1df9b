"""Submitters that write a journal of what they were told, while they, the workers and the database are killed.

Every line of a journal is appended before its submitter goes on, so it outlives a SIGKILL. Afterwards the journals are
compared with the database: nothing acknowledged is missing, nothing that was "not written" is there, nothing is there
twice. Used by the crash tests and at full size by `./go soak journal`.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import urlsplit, urlunsplit

import psycopg

from onetray.domain.errors import OnetrayError, OutcomeUnknown, Unavailable
from onetray.engine import Engine
from onetray.verify import verify
from tests.support import fleet
from tests.support.audit import audit
from tests.support.cluster import Cluster
from tests.support.fleet import Ledger, wait_until
from tests.support.workers import WorkerProcess
from tests.support.workload import app, note

INTENDED, ACKNOWLEDGED, REFUSED, UNKNOWN = "intended", "acknowledged", "refused", "unknown"
THREADS = 4
BULK = 20
LEAST = 50
"""Submits that have to be acknowledged between two kills."""
OUTCOMES = ("task.succeeded", "task.failed", "task.dead_lettered", "task.cancelled")
_COMMITTED = b"COMMIT\x00"
_IN_SYNC = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
_IDLE = b"Z\x00\x00\x00\x05I"


class Submitter(threading.Thread):
    """Submits one by one, under keys and in bulk, drawn by lot, until its process is killed or told to stop."""

    def __init__(self, journal: str, effects: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._journal, self._effects, self._stopping = Ledger(journal), effects, stop
        self._lots = random.Random()

    def run(self) -> None:
        while not self._stopping.is_set():
            lot = self._lots.random()
            if lot < 0.1:
                self._in_bulk()
            elif lot < 0.3:
                self._under_a_key()
            else:
                self._alone()

    def _alone(self) -> None:
        what = uuid.uuid4().hex
        self._journal.write(INTENDED, what)
        self._note_answer(lambda: [note.submit(what, self._effects).id], [what])

    def _under_a_key(self) -> None:
        """As a careful caller: asks again under the same key until it is told."""
        what = uuid.uuid4().hex
        self._journal.write(INTENDED, what)
        while not self._stopping.is_set():
            with contextlib.suppress(OnetrayError):
                job = note.options(idempotency_key=what).submit(what, self._effects)
                self._journal.write(ACKNOWLEDGED, what, str(job.id))
                return
            self._stopping.wait(0.05)

    def _in_bulk(self) -> None:
        many = [uuid.uuid4().hex for _ in range(BULK)]
        for what in many:
            self._journal.write(INTENDED, what)
        calls = [{"what": what, "ledger": self._effects} for what in many]
        self._note_answer(lambda: [job.id for job in note.submit_many(calls)], many)

    def _note_answer(self, submit: Callable[[], Sequence[str]], many: list[str]) -> None:
        try:
            ids = submit()
        except OutcomeUnknown:
            self._each(UNKNOWN, many)
        except Unavailable:
            self._each(REFUSED, many)
            self._stopping.wait(0.05)
        else:
            for what, id_ in zip(many, ids, strict=True):
                self._journal.write(ACKNOWLEDGED, what, str(id_))

    def _each(self, fate: str, many: list[str]) -> None:
        for what in many:
            self._journal.write(fate, what)


def submit_for_ever(url: str, journal: str, effects: str, stop_file: str) -> None:
    """The program of a submitting process. Its journal says what happened, not its log."""
    logging.disable()
    stop = threading.Event()
    while not stop.is_set():  # The database may be away while it starts.
        try:
            engine = Engine.open(url)
            break
        except Unavailable:
            stop.wait(0.1)
    with engine:
        app.use(engine)
        threads = [Submitter(journal, effects, stop) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        wait_until(Path(stop_file).exists, 3600)
        stop.set()
        for thread in threads:
            thread.join(90)


class CuttingProxy:
    """Forwards to a PostgreSQL server, which may change; loses some of its answers right after COMMIT."""

    def __init__(self, url: str, share: float, seed: int) -> None:
        self.share, self.cuts = share, 0
        self._lots = random.Random(seed)
        self._parts = urlsplit(url)
        self.forward_to(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = urlunsplit(self._parts._replace(netloc=f"{self._parts.username}@127.0.0.1:{port}"))
        threading.Thread(target=self._accept, daemon=True).start()

    def forward_to(self, url: str) -> None:
        """New connections go to this server."""
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        threading.Thread(target=self._pass_on, args=(client, server, False), daemon=True).start()
        self._pass_on(server, client, True)

    def _pass_on(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if answers and self._loses(data):
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _loses(self, data: bytes) -> bool:
        """COMMIT by itself, or a single statement that was its own transaction: rarely, most are reads."""
        share = self.share if _COMMITTED in data else self.share / 10 if _IDLE in data else 0
        lost = self._lots.random() < share
        self.cuts += lost
        return lost


class Database(Protocol):
    """A server that can be taken away."""

    url: str

    def crash(self) -> str:
        """Take it away and bring it, or another at `url`, back; answers what was done."""


class CrashingServer:
    """Ends a PostgreSQL server in each of its ways in turn, and starts it again."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._ways = cycle([self._kill, partial(self._restart, "immediate"), partial(self._restart, "fast")])

    @property
    def url(self) -> str:
        return self.cluster.url

    def crash(self) -> str:
        next(self._ways)()
        return "PostgreSQL servers"

    def _kill(self) -> None:
        self.cluster.kill()
        self.cluster.start_again()

    def _restart(self, mode: str) -> None:
        self.cluster.restart(mode)


class FailingOverServer(CrashingServer):
    """The same with a synchronous standby, which takes over every other time and gets a standby of its own."""

    def __init__(self, cluster: Cluster, stack: ExitStack) -> None:
        super().__init__(cluster)
        self._stack = stack
        self._crashes = 0
        self._follow()

    def crash(self) -> str:
        self._crashes += 1
        if self._crashes % 2:
            return super().crash()
        self.cluster.kill()
        self._standby.promote()
        self.cluster = self._standby
        self._follow()
        return "failovers"

    def _follow(self) -> None:
        """From here on nothing is acknowledged that the standby does not have."""
        self._standby = self._stack.enter_context(self.cluster.standby())
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            wait_until(lambda: connection.execute(_IN_SYNC).fetchall() == [(1,)], 60)


@dataclass
class Campaign:
    """What was done, and what was wrong with the outcome."""

    acknowledged: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    cuts: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{n} {what}" for what, n in sorted(self.kills.items())) or "nothing"
        states = ", ".join(f"{n} {state}" for state, n in sorted(self.states.items()))
        return (
            f"{self.acknowledged} acknowledged ({self.fates[REFUSED]} refused, {self.fates[UNKNOWN]} unknown);"
            f" killed: {kills}; {self.cuts} answers lost; now {states}; {len(self.faults)} faults"
        )


def run_campaign(
    url: str,
    folder: Path,
    *,
    acknowledged: int,
    submitters: int = 2,
    workers: int = 2,
    every_s: float = 1.0,
    database: Database | None = None,
    database_every: int = 10,
    cut_share: float = 0.03,
    seed: int = 1,
    limit_s: float = 1800.0,
    say: Callable[[str], None] = lambda _: None,
) -> Campaign:
    """Submit and work until so many submits are acknowledged; kill something every so often."""
    done = Campaign()
    with ExitStack() as stack:
        proxy = None
        if url.startswith("postgres"):
            proxy = stack.enter_context(CuttingProxy(url, cut_share, seed))
        crew = stack.enter_context(_crew(proxy.url if proxy else url, folder, submitters, workers))

        def crash() -> str:
            assert database is not None
            assert proxy is not None
            what = database.crash()
            proxy.forward_to(database.url)
            return what

        lots, often = random.Random(seed), database_every if database else 0
        _kill_until(crew, done, acknowledged, every_s, crash, often, lots, limit_s, say)
        if proxy is not None:
            done.cuts, proxy.share = proxy.cuts, 0.0
        crew.stop_submitting()
        with Engine.open(proxy.url if proxy else url) as engine:
            _wait_for_the_end(engine, done, limit_s)
            done.faults += _faults(engine, crew, done)
    return done


class Crew:
    """The processes of a campaign, and their journals."""

    def __init__(self, url: str, folder: Path, submitters: int, workers: int) -> None:
        self._url, self._folder = url, folder
        self._stop, self.effects = folder / "stop", str(folder / "effects")
        self._journals: list[Path] = []
        self._started = 0
        self._submitters = [self._start_submitter() for _ in range(submitters)]
        self._workers = [self._start_worker() for _ in range(workers)]

    def _start_submitter(self) -> BaseProcess:
        journal = self._folder / f"journal-{len(self._journals)}"
        self._journals.append(journal)
        return fleet.start(submit_for_ever, self._url, str(journal), self.effects, str(self._stop))

    def _start_worker(self) -> WorkerProcess:
        self._started += 1
        return WorkerProcess(self._url, self._folder / f"worker-{self._started}.log", "--concurrency", "20")

    def kill_a_submitter(self, lots: random.Random) -> str:
        place = lots.randrange(len(self._submitters))
        self._submitters[place].kill()
        self._submitters[place].join()
        self._submitters[place] = self._start_submitter()
        return "submitters"

    def kill_a_worker(self, lots: random.Random) -> str:
        place = lots.randrange(len(self._workers))
        self._workers[place].kill()
        self._workers[place] = self._start_worker()
        return "workers"

    def exited_workers(self) -> list[str]:
        """The logs of workers that ended by themselves: none should."""
        return [worker.log[-2000:] for worker in self._workers if worker.process.poll() is not None]

    def acknowledged(self) -> int:
        return sum(_count(journal, f'["{ACKNOWLEDGED}"') for journal in self._journals)

    def journal(self) -> Iterator[list[Any]]:
        for path in self._journals:
            yield from Ledger.read(path)

    def stop_submitting(self) -> None:
        self._stop.touch()
        fleet.end_all(self._submitters, 120)
        self._submitters = []

    def close(self) -> None:
        for process in self._submitters:
            process.kill()
        for worker in self._workers:
            worker.kill()


@contextmanager
def _crew(url: str, folder: Path, submitters: int, workers: int) -> Iterator[Crew]:
    crew = Crew(url, folder, submitters, workers)
    try:
        yield crew
    finally:
        crew.close()


def _kill_until(
    crew: Crew, done: Campaign, acknowledged: int, every_s: float, crash: Callable[[], str], often: int,
    lots: random.Random, limit_s: float, say: Callable[[str], None],
) -> None:  # fmt: skip
    until, turn = time.monotonic() + limit_s, 0
    # On a quick machine all are acknowledged before the database has had its turn.
    while (known := crew.acknowledged()) < acknowledged or turn < often:
        if time.monotonic() > until:
            done.faults.append(f"{known} submits were acknowledged in {limit_s:g} s, fewer than {acknowledged}")
            return
        time.sleep(every_s)
        # Those who are killed must have begun to work, or nothing is shown by it.
        wait_until(lambda: crew.acknowledged() > known + LEAST or time.monotonic() > until, limit_s)
        turn += 1
        if often and turn % often == 0:
            done.kills[crash()] += 1
        else:
            done.kills[lots.choice([crew.kill_a_submitter, crew.kill_a_worker])(lots)] += 1
        if turn % 10 == 0:
            say(f"{known} acknowledged; killed: {dict(done.kills)}")


def _wait_for_the_end(engine: Engine, done: Campaign, limit_s: float) -> None:
    sql = "SELECT count(*) FROM onetray.task WHERE finished_at IS NULL"
    try:
        wait_until(lambda: engine.store.read_sql(sql)[0][0] == 0, limit_s)
    except fleet.FleetFailed:
        done.faults.append(f"{engine.store.read_sql(sql)[0][0]} tasks are still open after {limit_s:g} s")


def _faults(engine: Engine, crew: Crew, done: Campaign) -> list[str]:
    """What the journals and the handlers' own traces say, beside what is in the database."""
    faults = list(audit(engine.store).faults) + [str(v) for v in verify(engine.store).violations]
    faults += [f"a worker ended by itself: {log}" for log in crew.exited_workers()]
    told: dict[str, dict[str, str | None]] = defaultdict(dict)
    for fate, what, *id_ in crew.journal():
        told[what][fate] = id_[0] if id_ else None
    made: dict[str, list[str]] = defaultdict(list)
    state_of = {}
    for id_, payload, state in _tasks(engine):
        made[payload["what"]].append(id_)
        state_of[id_] = state
    done.acknowledged = sum(ACKNOWLEDGED in fates for fates in told.values())
    done.fates.update(fate for fates in told.values() for fate in fates)
    done.states.update(state_of.values())
    for what, fates in told.items():
        faults += _faults_of(what, fates, made.get(what, []))
    faults += [f"{what} is in the database and nobody intended it" for what in made.keys() - told.keys()]
    return [*faults, *_outcome_faults(engine, state_of, {row[0] for row in Ledger.read(crew.effects)})]


def _faults_of(what: str, fates: dict[str, str | None], made: list[str]) -> Iterator[str]:
    if len(made) > 1:
        yield f"{what} was submitted {len(made)} times"
    if ACKNOWLEDGED in fates and fates[ACKNOWLEDGED] not in made:
        yield f"LOST: {what} was acknowledged as {fates[ACKNOWLEDGED]}, there is {made or 'nothing'}"
    if REFUSED in fates and made:
        yield f"{what} was refused with 'nothing was written', and is there"


def _outcome_faults(engine: Engine, state_of: dict[str, str], effects: set[str]) -> Iterator[str]:
    sql = (
        "SELECT CAST(t.id AS text), e.type FROM onetray.event AS e JOIN onetray.task AS t ON t.key = e.entity "
        "WHERE e.version IS NOT NULL"
    )
    outcomes = Counter(str(uuid.UUID(id_)) for id_, type_ in engine.store.read_sql(sql) if type_ in OUTCOMES)
    for id_, state in state_of.items():
        if outcomes[id_] != 1:
            yield f"{id_} is {state} with {outcomes[id_]} outcomes"
        if state == "succeeded" and id_ not in effects:
            yield f"{id_} has succeeded and its handler never came to its end"


def _tasks(engine: Engine) -> Iterator[tuple[str, Any, str]]:
    before = 2**62
    while page := engine.tasks(limit=1000, before=before):
        before = page[-1].key
        for task in page:
            yield str(task.id), task.payload, task.state


def _count(path: Path, word: str) -> int:
    return path.read_text().count(word) if path.exists() else 0
