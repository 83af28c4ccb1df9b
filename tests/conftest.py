"""Fixtures that every test may use: a PostgreSQL server, and a fresh database on it."""

import gc
import os
from collections.abc import Generator, Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from onetray.domain.clock import VirtualClock
from onetray.engine import Engine
from onetray.store import open_store
from onetray.store import postgres as postgres_store
from onetray.store import sqlite as sqlite_store
from tests.support import memory_files
from tests.support.binaries import has_system_postgres
from tests.support.cluster import Cluster, Server, server
from tests.support.cpu_report import CpuReport, Meter
from tests.support.databases import Databases
from tests.support.engines import engine_on, migrated_sqlite
from tests.support.first_collection import compiled_once
from tests.support.one_collection import OneCollection
from tests.support.schedule import LongestFirst, longest_first
from tests.support.shared_certificates import read_certificates_once
from tests.support.warm_pool import KeptPool
from tests.support.whole_answers import use_whole_answers

# Workers of pytest-xdist are told a width: output to a pipe must be as it is without one.
os.environ.pop("COLUMNS", None)

use_whole_answers()
read_certificates_once()
postgres_store.WarmPool = KeptPool  # type: ignore[misc]
# Nobody pulls the plug on this process: no commit has to wait for the disk.
sqlite_store.PRAGMAS = (*sqlite_store.PRAGMAS, "synchronous = OFF")

GC_THRESHOLDS = (50_000, 20, 100)
"""A test makes little garbage, and a look for it costs as much as the test has in memory."""

# Time limits belong to pytest-timeout: a busy machine must not fail a property.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The server of this run. A test that kills its server starts its own with `Cluster.start()`."""
    with server() as running:
        yield running


@pytest.fixture
def pg_url(postgres: Server) -> Iterator[str]:
    """The URL of a fresh, empty database."""
    with postgres.database() as url:
        yield url


@pytest.fixture(scope="session")
def migrated_template(postgres: Server) -> Iterator[str]:
    """The URL of a migrated database to make others from. Nobody may be connected to it."""
    with postgres.database() as url:
        store = open_store(url)
        store.migrate()
        store.close()
        yield url


@pytest.fixture
def own_url(postgres: Server, migrated_template: str) -> Iterator[str]:
    """The URL of a new PostgreSQL database that is migrated: what its server counts of it is this test's own."""
    with postgres.database(migrated_template) as url:
        yield url


@pytest.fixture(scope="session")
def databases(postgres: Server) -> Iterator[Databases]:
    """Migrated databases on the run's server, emptied after each use."""
    lent = Databases(postgres)
    yield lent
    lent.close()


@pytest.fixture
def migrated_url(databases: Databases) -> Iterator[str]:
    """The URL of a PostgreSQL database that is migrated and has no rows."""
    with databases.database() as url:
        yield url


@pytest.fixture(scope="session")
def system_databases() -> Iterator[Databases]:
    """The same on the system's own PostgreSQL, which is older than the one that the tests bring along."""
    with Cluster.start(system=True, durable=False) as running:
        lent = Databases(running)
        yield lent
        lent.close()


@pytest.fixture
def system_url(system_databases: Databases) -> Iterator[str]:
    with system_databases.database() as url:
        yield url


STORES = ["sqlite", "postgres", *(["system-postgres"] if has_system_postgres() else [])]
BY_VERSION = (
    "caller_connection", "claims", "feed", "flows_submit", "listing", "migrations", "plans", "smoke", "verify",
)  # fmt: skip
"""What may differ between versions of PostgreSQL: SQL that is new there, plans, locks. The rest lies above it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-servers", action="store_true", help="Run every test on the system's PostgreSQL, too.")
    parser.addoption("--cpu-report", action="store_true", help="Print the processor time that each test file took.")
    parser.addoption("--save-durations", action="store_true", help="Write down how long tests take, for the next run.")


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        config.pluginmanager.register(OneCollection())
    if not is_worker and (folder := memory_files.make_folder()):
        memory_files.use_folder(folder)
        # After multiprocessing, at priority -100, has removed what it has in there.
        Finalize(None, memory_files.remove_folder, (folder,), exitpriority=-200)
    if config.getoption("--cpu-report") or config.getoption("--save-durations"):
        config.pluginmanager.register(Meter([]) if is_worker else CpuReport(config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """How the processes of a run share the tests, unless `--dist` says otherwise."""
    return LongestFirst(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for no garbage meanwhile, and never among what is there afterwards: what is imported stays."""
    gc.disable()
    try:
        given = getattr(session.config, "workerinput", {})
        with compiled_once(given.get("workerid"), given.get("testrunuid", "")):
            return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--all-servers"):
        leave_out_repetitions(config, items)
    if hasattr(config, "workerinput"):
        longest_first(items)


def leave_out_repetitions(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the second PostgreSQL would only repeat: both servers run the same statements."""
    names = tuple(f"test_{name}" for name in BY_VERSION)
    left_out = {i for i in items if "system-postgres" in i.name and not i.path.stem.startswith(names)}
    items[:] = [item for item in items if item not in left_out]
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))


@pytest.fixture(params=STORES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A migrated database of each kind in turn, without rows."""
    if request.param == "sqlite":
        return migrated_sqlite(tmp_path)
    url: str = request.getfixturevalue("migrated_url" if request.param == "postgres" else "system_url")
    return url


@pytest.fixture(scope="module", params=STORES)
def shared_engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One engine for a module of many small cases, each of which looks at its own task in its own queue."""
    if request.param == "sqlite":
        with engine_on(migrated_sqlite(tmp_path_factory.mktemp("shared")), VirtualClock()) as running:
            yield running
        return
    lent: Databases = request.getfixturevalue("databases" if request.param == "postgres" else "system_databases")
    with lent.database() as url, engine_on(url, VirtualClock()) as running:
        yield running


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def engine(database_url: str, clock: VirtualClock) -> Iterator[Engine]:
    """An engine on each store in turn, on a virtual clock; its database is verified afterwards."""
    with engine_on(database_url, clock) as running:
        yield running


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever returns within a test's patience was woken."""
    monkeypatch.setattr("onetray.notify.wake.POLL_S", 3600.0)
    monkeypatch.setattr("onetray.notify.wake.POLL_WITHOUT_LISTENER_S", 3600.0)


@pytest.fixture
def only_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is woken because a SQLite file has changed: that happens whenever a busy machine delays the ring."""
    monkeypatch.setattr("onetray.notify.base.POLL_FILE_WITH_MULTICAST_S", 3600.0)
