"""`onetray serve` and `onetray up`: the server, alone or with a worker in the same process.

Owns their options and the errors at the start. http/server.py runs and stops the server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onetray.cli import BadInput
from onetray.cli.options import app_options, database_of, database_option, opened_database, queue_names, quiet_driver
from onetray.cli.target import app_path, name_database, named_app, remember_app, use_app
from onetray.config import BUILT_IN_DIALECTS

if TYPE_CHECKING:
    from types import ModuleType

    from onetray.engine import Engine
    from onetray.settings import Settings
    from onetray.worker import Worker

Command = TypeVar("Command", bound=Callable[..., Any])
DIALECTS = ", ".join(BUILT_IN_DIALECTS)
ONE_APP = "pass --app or --example, not both"
EXAMPLE, EXAMPLE_QUEUES = "onetray.examples.parcels:app", ["default", "parcels"]


def _shared(command: Command) -> Command:
    """The options of both commands."""
    for option in reversed(
        (
            click.option("--host", metavar="ADDRESS", help="The address to listen on. Default: 127.0.0.1."),
            click.option("--port", metavar="N", type=int, help="The port; 0 picks a free one. Default: 8321."),
            click.option("--no-janitor", is_flag=True, help="Leave expired leases and due tasks to other processes."),
            click.option(
                "--dialects", metavar="A,B", help=f"Dialects to serve: {DIALECTS}, or installed ones. Or none."
            ),
            click.option("--retention", metavar="AGE", help="Delete jobs this long after their end: 12h, 30d. Or off."),
            click.option("--log-level", metavar="LEVEL", help="debug, info, warning, error or critical."),
            click.option("--log-format", metavar="FORMAT", help="json or text. Default: text on a terminal."),
        )
    ):
        command = option(command)
    return command


@click.command(short_help="Serve the API.")
@database_option
@_shared
def serve(database: str, no_janitor: bool, **options: Any) -> None:
    """Serve the API until SIGTERM, SIGINT or SIGHUP, and run the janitor: expired leases, retries, deadlines.

    It runs no tasks: workers do that in other processes. `onetray up` runs both in one process.

    The first signal waits for running requests, a second SIGTERM or SIGINT stops at once. A SQLite file
    that does not exist is created and migrated. Other options come from the settings: see `onetray config`.
    """
    settings = _settings(options)
    server = server_module()
    with opened_database(database, create=True) as engine:
        if not no_janitor:
            engine.janitor(retention_s=settings.retention_s).start()
        _run(server, engine, settings, close=engine.close)


def _remember_example(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    """The example is an app like any other: it may name the database."""
    if value:
        if named_app(ctx) is not None:
            raise BadInput(ONE_APP)
        remember_app(ctx, param, EXAMPLE)
    return value


@click.command(short_help="Serve the API and run an app's tasks in one process.")
@click.option(
    "--example", is_flag=True, is_eager=True, callback=_remember_example, help="Run the app onetray.examples.parcels."
)
@app_options
@click.option("--concurrency", metavar="N", type=int, help="The number of handlers that run at once.")
@click.option("--queues", metavar="A,B:5", help="Queues to claim from; B:5 holds at most five tasks of B at once.")
@click.option("--drain", "drain_s", metavar="SECONDS", type=float, help="How long handlers may continue after a stop.")
@_shared
def up(
    example: bool, database: str | None, namespace: str | None, queues: str | None, no_janitor: bool, **options: Any
) -> None:
    """Serve the API and run the tasks of an app, in one process, until SIGTERM, SIGINT or SIGHUP.

    A stop waits for running requests and handlers. Unfinished tasks return to their queues and cost no attempt. A
    second SIGTERM or SIGINT stops at once.
    """
    path = app_path()
    if example and path != EXAMPLE:
        raise BadInput(ONE_APP)
    names = queue_names(queues) if queues is not None else EXAMPLE_QUEUES if example else None
    settings = _settings({**options, "app": path, "queues": names})
    if settings.app is None:
        raise BadInput("no app: pass --app module:app, or set app in the settings. --example runs an example")
    server = server_module()
    from onetray.worker import Worker

    app, warnings = use_app(settings.app, database, namespace)
    for warning in warnings:
        click.echo(f"onetray: {warning}", err=True)
    name_database(app.database)
    quiet_driver()
    # The janitor started below serves all namespaces, as that of `serve` does; the worker needs none of its own.
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


def _settings(options: dict[str, Any]) -> Settings:
    from onetray.settings import load
    from onetray.worker.stop_signals import outlive_readers

    outlive_readers()
    dialects = options.pop("dialects")
    http_options = {f"http.{name}": options.pop(name) for name in ("host", "port", "log_format")}
    if dialects is not None:
        http_options["http.dialects"] = [name.strip() for name in dialects.split(",")]
    return load({**options, **http_options}).settings


def server_module() -> ModuleType:
    """Import http/server.py, which needs the extra `server`."""
    try:
        from onetray.http import server
    except ModuleNotFoundError as e:
        if e.name is None or e.name.startswith("onetray"):
            raise
        raise BadInput(f"{e.name} is missing: install the server with `pip install 'onetray[server]'`") from e
    return server


def _run(
    server: Any, engine: Engine, settings: Settings, *, close: Callable[[], None], worker: Worker | None = None
) -> None:
    from onetray.http.app import build
    from onetray.http.auth.middleware import may_bind
    from onetray.http.dialects import check_dialects
    from onetray.log_format import set_up

    config = replace(settings.http, dialects=check_dialects(settings.http.dialects))
    has_tokens = engine.tokens.exist()
    may_bind(config.host, has_tokens)
    listening = server.listen(config.host, config.port)
    url = server.url_of(listening)
    access = "every request needs a token" if has_tokens else "no token is needed: only this machine can connect"
    set_up(settings.log_level, config.log_format)
    app = build(engine, config)
    server.tune_process()

    def ready() -> None:
        click.echo(f"onetray listens on {url}; its API is documented at {url}/docs; {access}")

    server.Server(app, config, worker=worker, close=close, ready=ready).run_on(listening)
