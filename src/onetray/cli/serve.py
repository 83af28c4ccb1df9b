"""`onetray serve` and `onetray up`: the server, alone or with a worker in the same process.

Owns their options, and what is said when they cannot start. How a server runs and stops is in http/server.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onetray.cli import BadInput
from onetray.cli.options import database_of, database_option, must_answer, opened_database

if TYPE_CHECKING:
    from types import ModuleType

    from onetray.engine import Engine
    from onetray.settings import Settings
    from onetray.worker import Worker

Command = TypeVar("Command", bound=Callable[..., Any])
EXAMPLE, EXAMPLE_QUEUES = "onetray.examples.parcels:app", ["default", "parcels"]


def _shared(command: Command) -> Command:
    """The options of both."""
    for option in reversed(
        (
            click.option("--host", metavar="ADDRESS", help="Where to listen: 127.0.0.1 unless told otherwise."),
            click.option("--port", metavar="N", type=int, help="8321 unless told otherwise; 0 takes a free one."),
            click.option("--no-janitor", is_flag=True, help="Leave expired leases and due times to other processes."),
            click.option("--dialects", metavar="A,B", help="Other systems whose routes are served, too: so1. Or none."),
            click.option("--retention", metavar="AGE", help="Remove jobs so long after their end: 12h, 30d. Or off."),
            click.option("--log-level", metavar="LEVEL", help="debug, info, warning, error or critical."),
            click.option("--log-format", metavar="FORMAT", help="json or text; otherwise text on a terminal."),
        )
    ):
        command = option(command)
    return command


@click.command(short_help="Serve the API.")
@database_option
@_shared
def serve(database: str, no_janitor: bool, **given: Any) -> None:
    """Serve the API until SIGTERM or SIGINT, and look after time: expired leases, retries, deadlines.

    It runs no tasks: workers do, in other processes. `onetray up` has both in one.

    A stop lets requests end that are under way; a second signal stops at once. A SQLite file is made and migrated when
    it is not there. What is not given comes from the settings: see `onetray config`.
    """
    settings = _settings(given)
    server = _server()
    with opened_database(database, create=True) as engine:
        if not no_janitor:
            engine.janitor(retention_s=settings.retention_s).start()
        _run(server, engine, settings, close=engine.close)


@click.command(short_help="Serve the API, and run an app's tasks in the same process.")
@click.option("--app", "path", metavar="MODULE:APP", help="Where the app is. Otherwise the setting app.")
@click.option("--example", is_flag=True, help="The tasks of onetray.examples.parcels instead of an app of yours.")
@click.option("--database", metavar="URL", help="Another database than the app's own.")
@click.option("--concurrency", metavar="N", type=int, help="Handlers that run at once.")
@click.option("--queues", metavar="A,B:5", help="Queues to take tasks from; B:5 holds at most five tasks of B at once.")
@click.option("--drain", "drain_s", metavar="SECONDS", type=float, help="How long handlers may go on after a stop.")
@_shared
def up(
    path: str | None, example: bool, database: str | None, queues: str | None, no_janitor: bool, **given: Any
) -> None:
    """Serve the API and run the tasks of an app, in one process, until SIGTERM or SIGINT. A second one stops at once.

    A stop lets requests and handlers end that are under way; tasks that are left are given back, and cost no attempt.
    """
    if example and path is not None:
        raise BadInput("give --app or --example, not both")
    chosen = queues.split(",") if queues is not None else EXAMPLE_QUEUES if example else None
    settings = _settings({**given, "app": EXAMPLE if example else path, "queues": chosen})
    if settings.app is None:
        raise BadInput("say where the app is: --app module:app, or the setting app. --example runs one to look at")
    server = _server()
    from onetray.worker import Worker
    from onetray.worker.app_loader import load_app

    app = load_app(settings.app)
    app.database = database or app.database
    if app.database.startswith("postgres"):
        must_answer(app.database)
    # Leases and due times are looked after for all name spaces, as `serve` does.
    runner = Worker(
        app, path=settings.app, concurrency=settings.concurrency, queues=settings.queues, drain_s=settings.drain_s,
        janitor=False,
    )  # fmt: skip
    try:
        if not no_janitor:
            database_of(app).janitor(retention_s=settings.retention_s).start()
        _run(server, database_of(app), settings, close=app.close, worker=runner)
    finally:
        app.close()


def _settings(given: dict[str, Any]) -> Settings:
    from onetray.settings import load

    dialects = given.pop("dialects")
    of_server = {f"http.{name}": given.pop(name) for name in ("host", "port", "log_format")}
    if dialects is not None:
        of_server["http.dialects"] = [name.strip() for name in dialects.split(",")]
    return load({**given, **of_server}).settings


def _server() -> ModuleType:
    """What a server is made of: loaded late, and not there without its extra."""
    try:
        from onetray.http import server
    except ModuleNotFoundError as e:
        if e.name is None or e.name.startswith("onetray"):
            raise
        raise BadInput(f"{e.name} is missing: install the server's part with `pip install 'onetray[server]'`") from e
    return server


def _run(
    server: Any, engine: Engine, settings: Settings, *, close: Callable[[], None], worker: Worker | None = None
) -> None:
    from onetray.http.app import build, check_dialects
    from onetray.http.auth.middleware import may_bind
    from onetray.log_format import set_up

    config = replace(settings.http, dialects=check_dialects(settings.http.dialects))
    has_tokens = engine.tokens.exist()
    may_bind(config.host, has_tokens)
    listening = server.listen(config.host, config.port)
    at = server.url_of(listening)
    access = "every request needs a token" if has_tokens else "no token is needed: only this machine reaches it"
    set_up(settings.log_level, config.log_format)
    app = build(engine, config)

    def ready() -> None:
        click.echo(f"onetray listens on {at}; its API is described at {at}/docs; {access}")

    server.Server(app, config, worker=worker, close=close, ready=ready).run_on(listening)
