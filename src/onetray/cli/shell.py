"""`onetray shell`: Python with the app and its engine at hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from onetray import __version__
from onetray.cli.options import database_option, namespace_option, opened_database
from onetray.cli.target import SERVER, app_path, name_database, remember_verbose, settings, use_app

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.engine.api import EngineApi

HELP = """\
  app            the app{app}; app.tasks and app.flows are what it declares{tasks}
  engine         its engine, with every verb and read: engine.queues(), engine.workers(), engine.cancel(id)
  job(id)        one job by its id, or by the first or last characters of it
  jobs(**filters) the newest jobs: jobs(states=["failed"], kind="mail", limit=20)
  explain(id)    why a job does not run
  namespace      {namespace!r}: engine.queues(namespace=namespace)"""


@click.command(short_help="Open a Python shell with the app and its engine.")
@database_option
@namespace_option
def shell(database: str, namespace: str) -> None:
    """Open a Python shell in which `app`, `engine`, the app's tasks and some helpers are defined. IPython is used if it
    is installed.

    A task has the name of its function: `send.submit(to="ann")`. The engine is not redacted. Without an app, `app` has
    no tasks. Statements can also be piped in.
    """
    path = app_path()
    # The database is always named: by this, not by the banner.
    remember_verbose(click.get_current_context(), None, True)
    with _engine(database) as engine:
        app = _app(path, database, namespace)
        app.use(engine)
        helpers = _helpers(app, engine, namespace)
        tasks = {name: task for name, task in _tasks_by_function(app).items() if name not in helpers}
        about = HELP.format(
            app=f" {path}" if path else ", without tasks: pass --app", namespace=namespace,
            tasks=f"\n  {', '.join(tasks):<14} its tasks, as in {next(iter(tasks))}.submit(…)" if tasks else "",
        )  # fmt: skip
        _interact({**tasks, **helpers}, f"onetray {__version__}\n{about}")


@contextmanager
def _engine(database: str) -> Iterator[EngineApi]:
    if not database.startswith(SERVER):
        with opened_database(database) as engine:
            yield engine
        return
    from onetray.remote.engine import RemoteEngine

    name_database(database)
    with RemoteEngine(database, config=settings().engine) as remote:
        remote.introduce(patience_s=0.0)
        yield remote


def _app(path: str | None, database: str, namespace: str) -> Onetray:
    from onetray.app.onetray import Onetray

    if path is None:
        return Onetray(database, namespace=namespace)
    app, warnings = use_app(path, database, namespace)
    for warning in warnings:
        click.echo(f"onetray: {warning}", err=True)
    return app


def _tasks_by_function(app: Onetray) -> dict[str, Any]:
    """The tasks by the names of their functions. A name that several tasks share means none of them."""
    functions = [task.function.__name__ for task in app.tasks.values()]
    return {task.function.__name__: task for task in app.tasks.values() if functions.count(task.function.__name__) == 1}


def _helpers(app: Onetray, engine: EngineApi, namespace: str) -> dict[str, Any]:
    def job(id: str) -> Any:
        """The job of an id, or of its first or last characters."""
        return app.job(engine.locate(id, among=("task", "flow"), namespace=namespace).id)

    def jobs(limit: int = 20, **filters: Any) -> list[Any]:
        """The newest jobs that match the filters of `engine.jobs`."""
        return engine.jobs(limit=limit, **{"namespace": namespace, **filters}).jobs

    def explain(id: str) -> list[Any]:
        """Why a job, a stage or a task does not run."""
        return list(engine.explain(engine.locate(id, namespace=namespace).id, namespace=namespace))

    return {"app": app, "engine": engine, "job": job, "jobs": jobs, "explain": explain, "namespace": namespace}


def _interact(names: dict[str, Any], banner: str) -> None:
    from importlib.util import find_spec

    if find_spec("IPython") is None:
        import code

        code.interact(banner, local=names, exitmsg="")
        return
    from IPython import start_ipython  # type: ignore[import-not-found, unused-ignore]

    click.echo(banner, err=True)
    start_ipython(argv=["--no-banner"], user_ns=names)
