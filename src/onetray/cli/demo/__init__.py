"""`onetray demo`: two worker processes, a pipeline, a few hundred jobs, a kill; then the verifier judges.

Owns where the files live, the signals and the exit code. What happens is in play.py, how it looks in screen.py.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from onetray.cli import FOUND

NEXT = """
What to try next (in a checkout, write ./go instead of onetray)
  onetray demo --keep demo.db                          keep the database of this demo
  onetray jobs list --database sqlite:///demo.db       see its jobs; `jobs tree ID` shows one with its stages
  onetray verify --database sqlite:///demo.db          check every rule on it
  onetray worker --app onetray.examples.news_pipeline  run the pipeline yourself: a worker here, and elsewhere
  python -m onetray.examples.news_pipeline             submit it (in a checkout: ./go python -m …)"""


@click.command(short_help="See the engine work.")
@click.option(
    "--keep",
    metavar="PATH",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the database in this new file. Otherwise it is in a temporary directory and removed.",
)
@click.option("--no-input", is_flag=True, help="Ask nothing: what needs an approval is approved.")
@click.pass_context
def demo(ctx: click.Context, keep: Path | None, no_input: bool) -> None:
    """See the engine work: two workers, of which one is killed, run a pipeline and a few hundred jobs.

    Takes less than a minute. Exits with 0 only if all of it ended well and the verifier finds every rule kept.
    """
    import tempfile

    if keep is not None and keep.exists():
        raise click.UsageError(f"{keep} exists: --keep needs a new file")
    if keep is not None and not keep.absolute().parent.is_dir():
        raise click.UsageError(f"{keep.parent} is no directory: --keep needs a new file in one that exists")
    with _ended_by_signals(), tempfile.TemporaryDirectory(prefix="onetray-demo-") as folder:
        well = _run(Path(folder), (keep or Path(folder) / "demo.db").absolute(), ask=not no_input and _is_attended())
    if not well:
        ctx.exit(FOUND)
    click.echo(NEXT)


def _run(folder: Path, database: Path, *, ask: bool) -> bool:
    from urllib.parse import quote

    from onetray.cli.demo.crew import Crew
    from onetray.cli.demo.play import Play
    from onetray.cli.demo.screen import Screen
    from onetray.cli.output import console
    from onetray.examples.parcels import app

    app.database = f"sqlite:///{quote(str(database))}"
    out = console()
    with app, Crew(folder, app.database) as crew, Screen(out, live=out.is_terminal) as screen:
        return Play(app, crew, screen, folder, ask=ask).run()


def _is_attended() -> bool:
    """Whether somebody sits there who can be asked."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Leave by an exception when told to end: otherwise the workers would stay behind."""

    def leave(number: int, _: Any) -> None:
        raise click.exceptions.Exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
