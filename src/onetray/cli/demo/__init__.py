"""`onetray demo`: two worker processes run a pipeline and a few hundred jobs; one is killed; then the verifier runs.

Owns the files, the signals and the exit code. scenario.py has the steps, screen.py the output.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onetray.cli import CHECK_FAILED

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray

NEXT = """
What to try next (in a checkout, use ./go instead of onetray)
  onetray demo --page                                  watch it in a browser
  onetray demo --keep demo.db                          keep the database of this demo
  onetray jobs list --database sqlite:///demo.db       list its jobs; `jobs tree ID` shows one with its stages
  onetray verify --database sqlite:///demo.db          check every rule on it
  onetray worker --app onetray.examples.news_pipeline  start a worker for the pipeline, then in another terminal
  python -m onetray.examples.news_pipeline             submit it (in a checkout: ./go python -m …)"""


@click.command(short_help="Watch two workers run a pipeline and survive a crash.")
@click.option(
    "--keep",
    metavar="PATH",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the database in this new file. Default: a temporary file, deleted at the end.",
)
@click.option("--no-input", is_flag=True, help="Do not ask: approve the stage that needs approval.")
@click.option("--page", is_flag=True, help="Also serve the dashboard on the demo's jobs, live, until Ctrl-C.")
@click.pass_context
def demo(ctx: click.Context, keep: Path | None, no_input: bool, page: bool) -> None:
    """Watch two workers run a pipeline and a few hundred jobs, while one of the workers is killed.

    Takes less than a minute. Exits with 0 only if everything succeeded and the verifier finds no broken rule.
    """
    import tempfile

    if keep is not None and keep.exists():
        raise click.UsageError(f"{keep} exists: --keep needs a new file")
    if keep is not None and not keep.absolute().parent.is_dir():
        raise click.UsageError(f"{keep.parent} is not a directory: --keep needs a new file in an existing one")
    with _exit_on_signals(), tempfile.TemporaryDirectory(prefix="onetray-demo-") as folder:
        succeeded = _run(
            Path(folder), (keep or Path(folder) / "demo.db").absolute(), ask=not no_input and _is_interactive(),
            page=page,
        )  # fmt: skip
    if not succeeded:
        ctx.exit(CHECK_FAILED)
    click.echo(NEXT)


def _run(folder: Path, database: Path, *, ask: bool, page: bool) -> bool:
    from urllib.parse import quote

    from onetray.cli.demo.scenario import Scenario
    from onetray.cli.demo.screen import Screen
    from onetray.cli.demo.workers import DemoWorkers
    from onetray.cli.output import console
    from onetray.examples.parcels import app

    app.database = f"sqlite:///{quote(str(database))}"
    out = console()
    with (
        app,
        _page(app) if page else nullcontext() as url,
        DemoWorkers(folder, app.database) as workers,
        Screen(out, live=out.is_terminal) as screen,
    ):
        succeeded = Scenario(app, workers, screen, folder, ask=ask).run()
        if url is not None:
            from onetray.cli.demo.page import wait_for_interrupt

            click.echo(f"\nThe page stays at {url} until Ctrl-C.")
            wait_for_interrupt()
        return succeeded


@contextmanager
def _page(app: Onetray) -> Iterator[str]:
    """Serve the dashboard, print its URL, and open a browser."""
    from onetray.cli.demo.page import open_browser, serve_page
    from onetray.cli.options import database_of

    with serve_page(database_of(app)) as url:
        click.echo(f"The page with all that follows, live: {url}")
        open_browser(url)
        yield url


def _is_interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Raise Exit on SIGTERM and SIGHUP, so that the workers are stopped on the way out."""

    def exit_(number: int, _: Any) -> None:
        raise click.exceptions.Exit(128 + number)

    old_handlers = {number: signal.signal(number, exit_) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
