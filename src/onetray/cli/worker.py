"""`onetray worker`: run the tasks of an app until SIGTERM, SIGINT or SIGHUP.

Owns the signals and the logging. worker/ runs the tasks.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from onetray.cli import SOURCES, BadInput
from onetray.cli.options import app_options, queue_names
from onetray.cli.target import SERVER, app_path, name_database, source_of, use_app

if TYPE_CHECKING:
    from onetray.worker import Worker
    from onetray.worker.reloader import Reloader

CLOSE_S = 5.0
"""How long to wait at the end for the database connections to close."""


@click.command(short_help="Run the tasks of an app.")
@app_options
@click.option("--server", metavar="URL", help="Work for a server, as http://host:8321, instead of a database.")
@click.option(
    "--token", metavar="TOKEN", help="The token for --server. Safer in ONETRAY_TOKEN: arguments show in process lists."
)
@click.option("--concurrency", metavar="N", type=int, help="The number of handlers that run at once in each process.")
@click.option("--queues", metavar="A,B:5", help="Queues to claim from; B:5 holds at most five tasks of B at once.")
@click.option("--processes", metavar="P", type=int, help="The number of worker processes. One that dies is restarted.")
@click.option("--name", metavar="NAME", help="The worker's name. Default: from its host and process id.")
@click.option("--drain", "drain_s", metavar="SECONDS", type=float, help="How long handlers may continue after a stop.")
@click.option("--retention", metavar="AGE", help="Delete jobs this long after their end: 12h, 30d. Or off.")
@click.option("--reload", is_flag=True, help="Restart when the app's source changes. For development.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning, error or critical.")
@click.option("--log-format", metavar="FORMAT", help="text or json; auto is text on a terminal. Default: text.")
@click.option("--json", "as_json", is_flag=True, help="The same as --log-format json.")
def worker(
    database: str | None, namespace: str | None, server: str | None, token: str | None, queues: str | None,
    name: str | None, as_json: bool, reload: bool, **options: Any,
) -> None:  # fmt: skip
    """Run the tasks of an app until SIGTERM, SIGINT or SIGHUP. A second SIGTERM or SIGINT stops at once.

    A stop waits up to --drain seconds for running handlers. Unfinished tasks return to their queues and cost no
    attempt.

    Other options come from the settings: see `onetray config`.
    """
    from onetray.log_format import set_up
    from onetray.settings import load
    from onetray.worker.stop_signals import outlive_readers

    outlive_readers()
    arguments = {**options, "app": app_path(), "queues": None if queues is None else queue_names(queues)}
    if as_json:
        arguments["log_format"] = "json"
    settings = load(arguments).settings
    if server is not None:
        _check_server(server)
    if settings.app is None:
        raise BadInput("no app: pass --app module:app, or set app in the settings")
    set_up(settings.log_level, settings.log_format)
    # Otherwise httpx2 logs a line for each request.
    logging.getLogger("httpx2").setLevel(max(logging.WARNING, logging.getLogger().level))
    if reload and settings.processes > 1:
        raise BadInput(f"--reload works with one process, not {settings.processes}: pass --processes 1")
    if settings.processes > 1:
        _supervise(settings.processes, settings.drain_s, name)
        return
    from onetray.worker import Worker
    from onetray.worker.reloader import restart
    from onetray.worker.stop_signals import stop_program_on_signals
    from onetray.worker.supervisor import on_leash

    if reload:
        _wait_until_importable(settings.app)
    app, warnings = use_app(settings.app, server or database, namespace)
    for warning in warnings:
        logging.getLogger("onetray.worker").warning(warning)
    app.token = token or app.token
    name_database(app.database)
    runner = Worker(
        app,
        path=settings.app,
        name=name or "",
        concurrency=settings.concurrency,
        queues=settings.queues,
        drain_s=settings.drain_s,
        retention_s=settings.retention_s,
    )
    reloader = _reloader(runner) if reload else None

    def ask_to_stop() -> None:
        if reloader is not None:
            reloader.is_cancelled = True
        runner.ask_to_stop()

    stop_program_on_signals(ask_to_stop)
    on_leash(ask_to_stop)
    try:
        runner.run()
    except BaseException:
        app.close()
        raise
    has_closed = runner.wait_for(app.close, CLOSE_S)
    if reloader is not None and reloader.has_changed and not reloader.is_cancelled:
        restart()
    if not has_closed:
        # Threads that wait for the database would keep the process alive.
        logging.getLogger("onetray.worker").warning("the database does not answer: exiting without closing connections")
        logging.shutdown()
        os._exit(0)


def _wait_until_importable(path: str) -> None:
    """Load the app. If its code is broken, wait for a change, and start again."""
    from onetray.domain.errors import InvalidInput
    from onetray.worker.app_loader import load_app
    from onetray.worker.reloader import imported_files, wait_for_fix

    # Python takes a cached module for current if its source has the same size and the same second.
    sys.dont_write_bytecode = True
    try:
        load_app(path)
    except InvalidInput as e:
        if "traceback" not in e.facts and not imported_files():
            raise  # A wrong --app: there is no file to watch.
        wait_for_fix(e)
        raise


def _reloader(runner: Worker) -> Reloader:
    from onetray.worker.reloader import Reloader

    logging.getLogger("onetray.worker").warning(
        "--reload is for development: each change of the app's source below %s restarts the worker", os.getcwd()
    )
    reloader = Reloader(runner.ask_to_stop)
    reloader.start()
    return reloader


def _check_server(server: str) -> None:
    if source_of("database") == "--database":
        raise BadInput("pass --server or --database, not both")
    if not server.startswith(SERVER):
        raise BadInput(f"--server must be http://host:port or https://host:port, not {server!r}")
    click.get_current_context().meta[SOURCES]["database"] = "--server"


def _supervise(processes: int, drain_s: float, name: str | None) -> None:
    from onetray.worker.stop_signals import stop_program_on_signals
    from onetray.worker.supervisor import Supervisor

    # Repeat the arguments: click uses the last --processes and --name. Only the first process deletes old jobs.
    arguments = sys.argv[sys.argv.index("worker") + 1 :]
    command = [sys.executable, "-m", "onetray", "worker", *arguments, "--processes", "1"]
    names = [["--name", f"{name}-{n + 1}"] if name else [] for n in range(processes)]
    retention = [["--retention", "off"] if n else [] for n in range(processes)]
    supervisor = Supervisor([command + n + r for n, r in zip(names, retention, strict=True)], drain_s)
    stop_program_on_signals(supervisor.ask_to_stop)
    supervisor.run()
