"""`onetray worker`: run the tasks of an app until it is told to stop.

Owns the signals and where the log goes. What a worker does is in worker/.
"""

from __future__ import annotations

import logging
import signal
import sys
from typing import Any

import click

from onetray.cli import BadInput


@click.command(short_help="Run the tasks of an app.")
@click.option("--app", "path", metavar="MODULE:APP", envvar="ONETRAY_APP", show_envvar=True, help="Where the app is.")
@click.option("--database", metavar="URL", help="Another database than the app's own.")
@click.option("--concurrency", metavar="N", type=click.IntRange(1, 10_000), default=10, show_default=True,
              help="Handlers that run at once in each process.")  # fmt: skip
@click.option("--queues", metavar="A,B:5", default="default", show_default=True,
              help="Queues to take tasks from; B:5 holds at most five tasks of B at once.")  # fmt: skip
@click.option("--processes", metavar="P", type=click.IntRange(1, 256), default=1, show_default=True,
              help="Worker processes. One that dies is started again.")  # fmt: skip
@click.option("--name", metavar="NAME", help="What this worker is called. Otherwise by its host and process.")
@click.option("--drain", "drain_s", metavar="SECONDS", type=click.FloatRange(0), default=30.0, show_default=True,
              help="How long handlers may go on after a stop was asked for.")  # fmt: skip
@click.option(
    "--log-level", type=click.Choice(("debug", "info", "warning", "error")), default="info", show_default=True
)
def worker(
    path: str | None, database: str | None, concurrency: int, queues: str, processes: int, name: str | None,
    drain_s: float, log_level: str,
) -> None:  # fmt: skip
    """Run the tasks of an app until SIGTERM or SIGINT. A second signal stops at once.

    A stop lets running handlers end, for --drain seconds; what is left is given back and costs no attempt.
    """
    if path is None:
        raise BadInput("say where the app is: --app module:app, or ONETRAY_APP")
    _log(log_level)
    if processes > 1:
        _supervise(processes, drain_s)
        return
    from onetray.worker import Worker
    from onetray.worker.locate import locate

    app = locate(path)
    if database is not None:
        app.database = database
    runner = Worker(app, path=path, concurrency=concurrency, queues=queues, name=name or "", drain_s=drain_s)
    _on_signals(runner.ask_to_stop)
    with app:
        runner.run()


def _supervise(processes: int, drain_s: float) -> None:
    from onetray.worker.supervise import Supervisor

    # The same words, once more: the last --processes counts.
    given = sys.argv[sys.argv.index("worker") + 1 :]
    supervisor = Supervisor([sys.executable, "-m", "onetray", "worker", *given, "--processes", "1"], processes, drain_s)
    _on_signals(supervisor.ask_to_stop)
    supervisor.run()


def _on_signals(ask_to_stop: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ask_to_stop())


def _log(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
