"""`onetray worker`: run the tasks of an app until it is told to stop.

Owns the signals and where the log goes. What a worker does is in worker/.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Any

import click

from onetray.cli import BadInput

CLOSE_S = 5.0
"""How long the closing of the database is waited for at the end."""


@click.command(short_help="Run the tasks of an app.")
@click.option("--app", "path", metavar="MODULE:APP", help="Where the app is. Otherwise the setting app.")
@click.option("--database", metavar="URL", help="Another database than the app's own.")
@click.option("--server", metavar="URL", help="Work for a server, as http://host:8321, instead of for a database.")
@click.option(
    "--token", metavar="TOKEN", help="With --server; better in ONETRAY_TOKEN, where no list of processes shows it."
)
@click.option("--concurrency", metavar="N", type=int, help="Handlers that run at once in each process.")
@click.option("--queues", metavar="A,B:5", help="Queues to take tasks from; B:5 holds at most five tasks of B at once.")
@click.option("--processes", metavar="P", type=int, help="Worker processes. One that dies is started again.")
@click.option("--name", metavar="NAME", help="What this worker is called. Otherwise by its host and process.")
@click.option("--drain", "drain_s", metavar="SECONDS", type=float, help="How long handlers may go on after a stop.")
@click.option("--retention", metavar="AGE", help="Remove jobs so long after their end: 12h, 30d. Or off.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning, error or critical.")
@click.option("--json", "as_json", is_flag=True, help="Write the log as JSON, a line for each entry.")
def worker(
    path: str | None, database: str | None, server: str | None, token: str | None, queues: str | None, name: str | None,
    as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Run the tasks of an app until SIGTERM or SIGINT. A second signal stops at once.

    A stop lets running handlers end, for --drain seconds; what is left is given back and costs no attempt.

    What is not given comes from the settings: see `onetray config`.
    """
    from onetray.log_format import set_up
    from onetray.settings import load

    arguments = {**given, "app": path, "queues": None if queues is None else queues.split(",")}
    settings = load(arguments).settings
    if server is not None:
        _must_be_a_server(server, database)
    if settings.app is None:
        raise BadInput("say where the app is: --app module:app, or the setting app")
    set_up(settings.log_level, "json" if as_json else "text")
    # One line for each request would hide what the worker says.
    logging.getLogger("httpx2").setLevel(max(logging.WARNING, logging.getLogger().level))
    if settings.processes > 1:
        _supervise(settings.processes, settings.drain_s, name)
        return
    from onetray.worker import Worker
    from onetray.worker.app_loader import load_app
    from onetray.worker.supervisor import on_leash

    app = load_app(settings.app)
    app.database, app.token = server or database or app.database, token or app.token
    runner = Worker(
        app,
        path=settings.app,
        name=name or "",
        concurrency=settings.concurrency,
        queues=settings.queues,
        drain_s=settings.drain_s,
        retention_s=settings.retention_s,
    )
    _on_signals(runner.ask_to_stop)
    on_leash(runner.ask_to_stop)
    try:
        runner.run()
    except BaseException:
        app.close()
        raise
    if not runner.wait_for(app.close, CLOSE_S):
        # The threads that wait for the database would hold up the end of the process.
        logging.getLogger("onetray.worker").warning("the database does not answer: its connections are left to it")
        logging.shutdown()
        os._exit(0)


def _must_be_a_server(server: str, database: str | None) -> None:
    from onetray.cli.options import SERVER

    if database is not None:
        raise BadInput("give --server or --database, not both")
    if not server.startswith(SERVER):
        raise BadInput(f"--server must be http://host:port or https://host:port, not {server!r}")


def _supervise(processes: int, drain_s: float, name: str | None) -> None:
    from onetray.worker.supervisor import Supervisor

    # The same words, once more: the last --processes counts, and the last --name. One of them removes old jobs.
    given = sys.argv[sys.argv.index("worker") + 1 :]
    command = [sys.executable, "-m", "onetray", "worker", *given, "--processes", "1"]
    names = [["--name", f"{name}-{n + 1}"] if name else [] for n in range(processes)]
    alone = [["--retention", "off"] if n else [] for n in range(processes)]
    supervisor = Supervisor([command + more + own for more, own in zip(names, alone, strict=True)], drain_s)
    _on_signals(supervisor.ask_to_stop)
    supervisor.run()


def _on_signals(ask_to_stop: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ask_to_stop())
