"""The soak: the crash and load tests at full size, for as long as it takes. Run it with `./go soak`.

Each command prints a short summary and ends with an exit code other than 0 on any violation.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tests.support.slow_campaigns import Phase

STORES = ("sqlite", "postgres", "both")
store_option = click.option(
    "--store", type=click.Choice(STORES), default="both", show_default=True, help="The database to try."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def soak() -> None:
    """Try onetray hard: many claimers, killed processes, many examples. Nothing is left behind."""


@contextmanager
def fresh(store: str) -> Iterator[str]:
    """The URL of an empty database that is gone afterwards."""
    if store == "sqlite":
        with tempfile.TemporaryDirectory(prefix="onetray-soak-") as folder:
            yield f"sqlite:///{Path(folder) / 'jobs.db'}"
        return
    from tests.support.cluster import server

    with server() as running, running.database() as url:
        yield url


def on_each(store: str, attempt: Callable[[str], list[str]]) -> None:
    """Run on each of the chosen stores; end with exit code 1 when any of them broke a rule."""
    broken = 0
    for name in ("sqlite", "postgres") if store == "both" else (store,):
        with fresh(name) as url:
            faults = attempt(url)
        for fault in faults[:20]:
            click.echo(f"  {fault}")
        click.echo(f"{name}: {'FAILED, ' + str(len(faults)) + ' faults' if faults else 'ok'}")
        broken += len(faults)
    if broken:
        sys.exit(1)


@soak.command()
@click.option("--claimers", type=click.IntRange(1, 280), default=256, show_default=True, help="Claimers at once.")
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="Claimers in one process: 1 is the hardest."
)
@click.option("--tasks", type=click.IntRange(1), default=20_000, show_default=True, help="Tasks to be done.")
@click.option("--limit-s", type=float, default=1800.0, show_default=True, help="When to give up.")
@click.option("--seed", type=int, default=1, show_default=True, help="What the claimers draw their lots from.")
@store_option
def claims(claimers: int, threads: int, tasks: int, limit_s: float, seed: int, store: str) -> None:
    """Let claimers loose, each a process of its own, while tasks expire and are cancelled under them."""
    from tests.support.claim_load import run_claim_load

    def attempt(url: str) -> list[str]:
        outcome = run_claim_load(
            url, tasks=tasks, processes=-(-claimers // threads), threads=threads, seed=seed, limit_s=limit_s
        )
        click.echo(str(outcome))
        return outcome.faults

    on_each(store, attempt)


@soak.command()
@click.option("--claimers", type=click.IntRange(1, 280), default=64, show_default=True, help="Claimers at once.")
@click.option("--threads", type=click.IntRange(1), default=8, show_default=True, help="Claimers in one process.")
@click.option("--tasks", type=click.IntRange(1), default=20_000, show_default=True, help="Tasks to be done.")
@click.option("--keys", type=click.IntRange(1), default=50, show_default=True, help="Keys, each with its limit.")
@click.option("--kills", type=click.IntRange(0), default=20, show_default=True, help="Processes to kill meanwhile.")
@click.option("--limit-s", type=float, default=1800.0, show_default=True, help="When to give up.")
@click.option("--seed", type=int, default=1, show_default=True, help="What the claimers draw their lots from.")
@store_option
def limits(
    claimers: int, threads: int, tasks: int, keys: int, kills: int, limit_s: float, seed: int, store: str
) -> None:
    """Let claimers loose on tasks under limits of 1, 3 and 10 for each key, and kill some: no limit is ever passed."""
    from tests.support.limit_load import run_limit_load

    def attempt(url: str) -> list[str]:
        outcome = run_limit_load(
            url, tasks=tasks, processes=-(-claimers // threads), threads=threads, keys=keys, kills=kills, seed=seed,
            limit_s=limit_s,
        )  # fmt: skip
        click.echo(str(outcome))
        return outcome.faults

    on_each(store, attempt)


@soak.command()
@click.option("--minutes", type=float, default=5.0, show_default=True, help="How long to go on for each store.")
@click.option("--workers", type=click.IntRange(1, 100), default=8, show_default=True, help="Workers at once.")
@click.option("--seed", type=int, default=1, show_default=True, help="What decides where each of them dies.")
@store_option
def kill(minutes: float, workers: int, seed: int, store: str) -> None:
    """Kill workers at random points, generation after generation; nothing acknowledged may be lost."""
    from tests.support.generations import run_generations

    def attempt(url: str) -> list[str]:
        return run_generations(url, time.monotonic() + minutes * 60, workers, seed, click.echo)

    on_each(store, attempt)


@soak.command()
@click.option("--jobs", type=click.IntRange(1), default=200, show_default=True, help="Jobs to be done.")
@click.option("--processes", type=click.IntRange(1, 100), default=4, show_default=True, help="Worker processes.")
@click.option("--away-s", type=float, default=10.0, show_default=True, help="How long PostgreSQL is taken away.")
@click.option("--seed", type=int, default=1, show_default=True, help="What decides who is killed.")
@store_option
def workers(jobs: int, processes: int, away_s: float, seed: int, store: str) -> None:
    """Kill a worker process every second while they work; then take PostgreSQL away from one, killed and stopped."""
    from onetray.store import open_store
    from tests.support.cluster import Cluster
    from tests.support.outage import take_away
    from tests.support.worker_kills import kill_workers

    def migrated(url: str) -> str:
        opened = open_store(url)
        opened.migrate()
        opened.close()
        return url

    def killed(url: str) -> list[str]:
        with tempfile.TemporaryDirectory(prefix="onetray-soak-") as folder:
            done = kill_workers(
                migrated(url), Path(folder), jobs=jobs, processes=processes, seed=seed, limit_s=600, say=click.echo
            )
        click.echo(str(done))
        return done.faults

    on_each(store, killed)
    if store == "sqlite":
        return
    faults: list[str] = []
    with Cluster.start() as cluster:
        for how in (Cluster.kill, Cluster.halt):
            with tempfile.TemporaryDirectory(prefix="onetray-soak-") as folder, cluster.database() as url:
                outage = take_away(cluster, migrated(url), Path(folder), away_s, how)
            click.echo(f"{how.__name__}: {outage}")
            faults += outage.faults
    for fault in faults[:20]:
        click.echo(f"  {fault}")
    click.echo(f"outage: {'FAILED, ' + str(len(faults)) + ' faults' if faults else 'ok'}")
    if faults:
        sys.exit(1)


@soak.command()
@click.option("--fires", type=click.IntRange(1, 10_000), default=10_000, show_default=True, help="Fire times.")
@click.option("--servers", type=click.IntRange(1, 20), default=2, show_default=True, help="Servers at once.")
@click.option("--workers", type=click.IntRange(1, 100), default=8, show_default=True, help="Workers at once.")
@click.option("--step", type=click.IntRange(1, 100), default=10, show_default=True, help="Fires in a transaction.")
@click.option("--limit-s", type=float, default=1800.0, show_default=True, help="When to give up.")
@click.option("--seed", type=int, default=1, show_default=True, help="What decides where each of them dies.")
@store_option
def schedules(fires: int, servers: int, workers: int, step: int, limit_s: float, seed: int, store: str) -> None:
    """Fire one schedule with servers and workers, each killed at a point of a fire: each time has one job."""
    from tests.support.schedule_kills import run_kills

    def attempt(url: str) -> list[str]:
        return run_kills(
            url, fires=fires, servers=servers, workers=workers, step=step, seed=seed, limit_s=limit_s, say=click.echo
        ).faults

    on_each(store, attempt)


@soak.command()
@click.option(
    "--acknowledged", type=click.IntRange(1), default=50_000, show_default=True, help="Submits to be acknowledged."
)
@click.option("--every-s", type=float, default=1.0, show_default=True, help="How long between two kills.")
@click.option("--seed", type=int, default=1, show_default=True, help="What decides who is killed, and what is cut.")
@store_option
def journal(acknowledged: int, every_s: float, seed: int, store: str) -> None:
    """Kill submitters, workers and PostgreSQL, fail over to a synchronous standby, and cut connections right after
    COMMIT: the submitters' journals say what was acknowledged, and all of it is there once."""
    from tests.support.cluster import Cluster
    from tests.support.engines import open_migrated
    from tests.support.journal import FailingOverServer, run_campaign

    def attempt(url: str) -> list[str]:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="onetray-soak-"))
            server = None
            if url.startswith("postgres"):
                # One of its own: it is killed.
                cluster = stack.enter_context(Cluster.start())
                url, server = cluster.create_database(), FailingOverServer(cluster, stack)
            open_migrated(url).close()
            done = run_campaign(
                url, Path(folder), acknowledged=acknowledged, every_s=every_s, database=server, seed=seed,
                say=click.echo,
            )  # fmt: skip
        click.echo(str(done))
        return done.faults

    on_each(store, attempt)


@soak.command()
@click.option("--clients", type=click.IntRange(1, 500), default=32, show_default=True, help="Clients at once.")
@click.option("--submits", type=click.IntRange(1), default=200, show_default=True, help="Submits of each client.")
@click.option("--kills", type=click.IntRange(0), default=20, show_default=True, help="How often the server is killed.")
@click.option("--lose", type=float, default=0.05, show_default=True, help="The share of requests or answers to lose.")
@click.option("--seed", type=int, default=1, show_default=True, help="What decides what is lost.")
@store_option
def remote(clients: int, submits: int, kills: int, lose: float, seed: int, store: str) -> None:
    """Kill a server under clients and a worker that use it, and lose requests and answers: each acknowledged submit
    is there once, and has one outcome."""
    from tests.support.server_kills import attack

    def attempt(url: str) -> list[str]:
        seen = attack(
            url, clients=clients, submits=submits, kills=kills, lose=lose, seed=seed, limit_s=900, say=click.echo
        )
        click.echo(str(seen))
        return seen.faults

    on_each(store, attempt)


@soak.command()
@click.option("--tasks", type=click.IntRange(1, 9_000), default=1_000, show_default=True, help="Tasks to be done.")
@click.option("--every", type=click.IntRange(1), default=30, show_default=True, help="Outcomes between two kills.")
@click.option("--seed", type=int, default=1, show_default=True, help="What decides who is killed, and when.")
@store_option
def agents(tasks: int, every: int, seed: int, store: str) -> None:
    """Let two agents share out a run over /mcp, and kill them at random: each task ends, with one accepted outcome."""
    from tests.support.agent_kills import kill_agents
    from tests.support.engines import open_migrated

    def attempt(url: str) -> list[str]:
        open_migrated(url).close()
        with tempfile.TemporaryDirectory(prefix="onetray-soak-") as folder:
            done = kill_agents(url, Path(folder), tasks=tasks, every=every, seed=seed, limit_s=1800, say=click.echo)
        click.echo(str(done))
        return done.faults

    on_each(store, attempt)


@soak.command()
@click.option("--race", "races", multiple=True, help="Only this race; may be given several times.")
@click.option("--stages", type=click.IntRange(2), default=2_000, show_default=True, help="Stages for each race.")
@click.option("--mixed", is_flag=True, help="All races at once, in one database.")
@click.option("--limit-s", type=float, default=1800.0, show_default=True, help="When to give up a race.")
@click.option("--seed", type=int, default=1, show_default=True, help="What the claimers draw their lots from.")
def flows(races: tuple[str, ...], stages: int, mixed: bool, limit_s: float, seed: int) -> None:
    """Let the eight siblings of each stage report at once, on PostgreSQL, while their flows are cancelled, paused,
    failed, grown and expire: no stage may be stuck, and PostgreSQL may have no deadlock to break."""
    from tests.support.last_task_races import RACES, run_races

    unknown = set(races) - set(RACES)
    if unknown:
        raise click.BadParameter(f"{', '.join(sorted(unknown))}; there are: {', '.join(RACES)}", param_hint="--race")
    broken = 0
    chosen = races or RACES
    for together in [chosen] if mixed else [(race,) for race in chosen]:
        with fresh("postgres") as url:
            outcome = run_races(url, together, stages, seed=seed, limit_s=limit_s)
        click.echo(f"{', '.join(together)}: {outcome}")
        for fault in outcome.faults[:20]:
            click.echo(f"  {fault}")
        broken += len(outcome.faults)
    click.echo(f"flows: {'FAILED, ' + str(broken) + ' faults' if broken else 'ok'}")
    if broken:
        sys.exit(1)


@soak.command(name="kill-flows")
@click.option("--case", "cases", multiple=True, help="Only this case; may be given several times.")
@store_option
def kill_flows(cases: tuple[str, ...], store: str) -> None:
    """Kill a process each time that a cascade of a flow comes to a named point; all of it is there, or nothing."""
    from onetray.domain.clock import VirtualClock
    from tests.support.engines import engine_on
    from tests.support.flow_kills import CASES, every_time, kill_in

    unknown = set(cases) - set(CASES)
    if unknown:
        raise click.BadParameter(f"{', '.join(sorted(unknown))}; there are: {', '.join(CASES)}", param_hint="--case")

    for case in cases or CASES:

        def attempt(url: str, case: str = case) -> list[str]:
            clock = VirtualClock()
            with engine_on(url, clock) as engine:
                killed = kill_in(engine, clock, url, case, every_time)
            click.echo(f"{case}: {killed.kills} processes killed")
            return killed.faults

        on_each(store, attempt)


@soak.command()
@click.option("--cases", type=click.IntRange(1), default=5_000, show_default=True, help="Requests, about so many.")
@click.option("--seed", type=int, default=1, show_default=True, help="What the requests are drawn from.")
@click.option("--store", type=click.Choice(STORES), default="sqlite", show_default=True, help="The database to try.")
def schemathesis(cases: int, seed: int, store: str) -> None:
    """Send the API requests made from its own description: no answer may break, or be other than described."""
    from onetray.http.app import build
    from onetray.verify import verify
    from tests.support.engines import open_migrated
    from tests.support.fuzz import furnish, run_campaign

    def attempt(url: str) -> list[str]:
        with open_migrated(url) as engine:
            done = run_campaign(build(engine), furnish(engine), cases=cases, luck=seed)
            click.echo(str(done))
            return [*done.faults, *map(str, verify(engine.store).violations)]

    on_each(store, attempt)


@soak.command()
@click.option("--clients", type=click.IntRange(5, 1000), default=200, show_default=True, help="Clients at once.")
@click.option("--jobs", type=click.IntRange(1), default=10_000, show_default=True, help="Jobs to be done meanwhile.")
@click.option("--limit-s", type=float, default=1800.0, show_default=True, help="When to give up.")
@click.option("--seed", type=int, default=1, show_default=True, help="What decides when each of them is cut off.")
@store_option
def streams(clients: int, jobs: int, limit_s: float, seed: int, store: str) -> None:
    """Cut clients of streams off at random while jobs are done; none may miss anything, or get anything twice."""
    from onetray.http.services import HttpConfig
    from tests.support.engines import engine_on
    from tests.support.live import serving
    from tests.support.streams import run_streams

    def attempt(url: str) -> list[str]:
        with engine_on(url) as engine, serving(engine, HttpConfig(heartbeat_s=0.5)) as live:
            outcome = run_streams(engine, live.port, clients=clients, jobs=jobs, seed=seed, limit_s=limit_s)
        click.echo(str(outcome))
        return outcome.faults

    on_each(store, attempt)


@soak.command(name="open-streams")
@click.option(
    "--streams", "count", type=click.IntRange(1, 1000), default=500, show_default=True, help="Streams at once."
)
@click.option("--idle-s", type=float, default=20.0, show_default=True, help="How long to measure them while idle.")
@store_option
def open_streams(count: int, idle_s: float, store: str) -> None:
    """Open many streams at a server process, and say what they cost: memory, file descriptors, CPU while idle."""
    from tests.support.open_streams import hold_open

    def attempt(url: str) -> list[str]:
        held = hold_open(url, count, idle_s)
        click.echo(str(held))
        return held.faults

    on_each(store, attempt)


@soak.command()
@click.option("--secrets", multiple=True, type=click.IntRange(1), default=(2_000, 10_000), show_default=True)
@click.option("--log-kb", multiple=True, type=click.IntRange(1), default=(380, 4_000), show_default=True)
@click.option("--payload-kb", type=click.IntRange(1), default=1_000, show_default=True, help="A large job besides.")
def redaction(secrets: tuple[int, ...], log_kb: tuple[int, ...], payload_kb: int) -> None:
    """Read jobs with many redacted texts and long logs from a server: no answer shows one, and reads of other jobs go
    on meanwhile. Says what it cost in CPU seconds, and how long the loop was blocked."""
    from tests.support.redacted import read_large, read_redacted

    faults: list[str] = []
    for count, size in [(count, size * 1_000) for count in secrets for size in log_kb]:
        with tempfile.TemporaryDirectory(prefix="onetray-soak-") as folder:
            cost = read_redacted(Path(folder), count, size)
        click.echo(str(cost))
        faults += cost.faults
    with tempfile.TemporaryDirectory(prefix="onetray-soak-") as folder:
        cost = read_large(Path(folder), payload_kb * 1_000)
    click.echo(str(cost))
    for fault in (faults := faults + cost.faults)[:20]:
        click.echo(f"  {fault}")
    click.echo(f"redaction: {'FAILED, ' + str(len(faults)) + ' faults' if faults else 'ok'}")
    if faults:
        sys.exit(1)


@soak.command(name="slow-connections")
@click.option("--clients", type=click.IntRange(1, 10_000), default=1_100, show_default=True, help="Clients that drip.")
@click.option("--seconds", type=float, default=90.0, show_default=True, help="How long they go on.")
@store_option
def slow_connections(clients: int, seconds: float, store: str) -> None:
    """Drip the heads of requests at a server process that may open 1,024 files, then flood it with random tokens: every
    honest request is answered, and the log stays short."""
    from tests.support.slow_campaigns import slow_connections

    _phases(store, lambda url: slow_connections(url, clients, seconds))


@soak.command(name="slow-readers")
@click.option(
    "--clients", type=click.IntRange(1, 900), default=500, show_default=True, help="Clients that do not read."
)
@click.option("--seconds", type=float, default=30.0, show_default=True, help="How long each sort of them goes on.")
@store_option
def slow_readers(clients: int, seconds: float, store: str) -> None:
    """Ask a server process for streams and large answers and read nothing, and send bodies that never end: every honest
    request is answered, and the server stays small."""
    from tests.support.slow_campaigns import slow_readers

    _phases(store, lambda url: slow_readers(url, clients, seconds))


def _phases(store: str, run: Callable[[str], Iterator[Phase]]) -> None:
    def attempt(url: str) -> list[str]:
        faults: list[str] = []
        for phase in run(url):
            click.echo(str(phase))
            faults += phase.faults
        return faults

    on_each(store, attempt)


@soak.command(name="waiting-workers")
@click.option("--claims", type=click.IntRange(1, 5000), default=1000, show_default=True, help="Claims that wait.")
@click.option("--queues", type=click.IntRange(1), default=10, show_default=True, help="Queues that they wait on.")
@click.option("--tasks", type=click.IntRange(1), default=10_000, show_default=True, help="Tasks to be submitted.")
@click.option("--workers", type=click.IntRange(1), default=8, show_default=True, help="Remote workers beside.")
@click.option("--idle-s", type=float, default=20.0, show_default=True, help="How long to measure them while idle.")
@click.option("--most-wait-s", type=float, default=1.0, show_default=True, help="A task may wait so long: one poll.")
@store_option
def waiting_workers(
    claims: int, queues: int, tasks: int, workers: int, idle_s: float, most_wait_s: float, store: str
) -> None:
    """Let claims and remote workers wait at a server: what they cost while idle, and whether each task finds one."""
    from tests.support.engines import engine_on
    from tests.support.waiting import run_waiting

    def attempt(url: str) -> list[str]:
        with engine_on(url) as engine:
            done = run_waiting(
                engine, url, claims=claims, queues=queues, tasks=tasks, workers=workers, idle_s=idle_s,
                most_wait_s=most_wait_s,
            )  # fmt: skip
        click.echo(str(done))
        return done.faults

    on_each(store, attempt)


@soak.command(name="property")
@click.argument("pytest_args", nargs=-1)
def property_(pytest_args: tuple[str, ...]) -> None:
    """Run the property tests with many more examples. PYTEST_ARGS go to pytest."""
    environment = {**os.environ, "HYPOTHESIS_PROFILE": "thorough"}
    command = [sys.executable, "-m", "pytest", "-q", "--timeout=0", "tests/property", *pytest_args]
    began = time.monotonic()
    code = subprocess.run(command, env=environment, check=False).returncode
    click.echo(f"property: {'ok' if code == 0 else 'FAILED'} after {time.monotonic() - began:.0f} s")
    sys.exit(code)


@soak.command()
@click.option("--tasks", type=click.IntRange(1000), default=1_000_000, show_default=True, help="Tasks beside.")
@click.argument("pytest_args", nargs=-1)
def plans(tasks: int, pytest_args: tuple[str, ...]) -> None:
    """Check the query plans beside a million tasks that cannot be claimed. PYTEST_ARGS go to pytest."""
    environment = {**os.environ, "ONETRAY_PLAN_TASKS": str(tasks)}
    command = [sys.executable, "-m", "pytest", "-q", "--timeout=0", "tests/load/test_plans.py", *pytest_args]
    began = time.monotonic()
    code = subprocess.run(command, env=environment, check=False).returncode
    click.echo(f"plans: {'ok' if code == 0 else 'FAILED'} after {time.monotonic() - began:.0f} s")
    sys.exit(code)


@soak.command(context_settings={"ignore_unknown_options": True})
@click.option("--times", type=click.IntRange(1), default=3, show_default=True, help="Runs, one after another.")
@click.argument("pytest_args", nargs=-1)
def suite(times: int, pytest_args: tuple[str, ...]) -> None:
    """Run the whole test suite while a process burns each core: no test may depend on a quiet machine. PYTEST_ARGS go
    to pytest."""
    from tests.support.suite import busy_cores, run_suite

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    codes = []
    with busy_cores(os.cpu_count() or 2):
        for number in range(1, times + 1):
            run = run_suite(pytest_args)
            for name in run.failed[:20]:
                click.echo(f"  {name}")
            click.echo(f"suite, run {number} of {times}: {run}")
            codes.append(run.exit_code)
    sys.exit(1 if any(codes) else 0)


@soak.command("mcp-conformance")
@store_option
def mcp_conformance(store: str) -> None:
    """Run the official conformance tests of MCP servers, and MCP Inspector, against /mcp. Needs npm and the network."""
    from tests.support.mcp_conformance import try_protocol
    from tests.support.prepared import PreparedProcess
    from tests.support.servers import listener, wait_for_port

    def attempt(url: str) -> list[str]:
        with listener() as found:
            port = found.getsockname()[1]
        server = PreparedProcess("tests.support.mcp_conformance", url, str(port))
        try:
            wait_for_port(port)
            with tempfile.TemporaryDirectory(prefix="onetray-soak-") as folder:
                return try_protocol(f"http://127.0.0.1:{port}", Path(folder), click.echo)
        finally:
            server.kill()
            server.wait(60)

    on_each(store, attempt)


@soak.command()
@click.option("--only", multiple=True, metavar="NAME", help="Only this fault; may be given several times.")
@click.option("--list", "list_", is_flag=True, help="Say what each fault does, and plant none.")
@click.option("--no-baseline", is_flag=True, help="Take it for granted that the tests pass without a fault.")
def planted(only: tuple[str, ...], list_: bool, no_baseline: bool) -> None:
    """Plant known faults in a copy of this checkout, one at a time: a test has to find each of them."""
    from tests.support.planted import ROOT, CannotPlant, run_campaign
    from tests.support.planted_faults import FAULTS

    unknown = set(only) - {fault.name for fault in FAULTS}
    if unknown:
        raise click.BadParameter(f"{', '.join(sorted(unknown))}; --list names all of them", param_hint="--only")
    chosen = [fault for fault in FAULTS if not only or fault.name in only]
    if list_:
        for fault in chosen:
            click.echo(f"{fault.name}: {fault.harm}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        missed = run_campaign(ROOT, chosen, click.echo, baseline=not no_baseline)
    except CannotPlant as e:
        raise click.ClickException(str(e)) from e
    if missed:
        click.echo(f"not found: {', '.join(missed)}")
        sys.exit(1)


if __name__ == "__main__":
    soak(prog_name="./go soak")
