"""`onetray demo`: run the story on a fresh SQLite file and let the verifier judge it.

Owns where the file lives and the exit code. What happens is in story.py.
"""

from __future__ import annotations

from pathlib import Path

import click

from onetray.cli import FOUND
from onetray.cli.output import console

NEXT = """
What to try next (in a checkout, write ./go instead of onetray)
  onetray demo --keep demo.db                      keep the database of this demo
  onetray verify --database sqlite:///demo.db      check every rule on it
  onetray lifecycle                                see every transition, and who may make it
"""


@click.command(short_help="See the engine work.")
@click.option(
    "--keep",
    metavar="PATH",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the database in this new file. Otherwise it is in a temporary directory and removed.",
)
@click.pass_context
def demo(ctx: click.Context, keep: Path | None) -> None:
    """See the engine work: jobs that succeed, fail, vanish, are cancelled and are redriven.

    Takes a few seconds. Exits with 0 only if the verifier finds every rule kept.
    """
    if keep is not None and keep.exists():
        raise click.UsageError(f"{keep} exists: --keep needs a new file")
    import tempfile

    with tempfile.TemporaryDirectory(prefix="onetray-demo-") as folder:
        clean = _run(keep or Path(folder) / "demo.db")
    click.echo(NEXT.rstrip())
    if not clean:
        ctx.exit(FOUND)


def _run(path: Path) -> bool:
    from urllib.parse import quote

    from onetray.cli.database import print_findings
    from onetray.cli.story import tell
    from onetray.engine import Engine
    from onetray.verify import verify

    with Engine.open(f"sqlite:///{quote(str(path.absolute()))}") as engine:
        tell(engine, console())
        click.echo("\nThe verifier's verdict")
        findings = verify(engine.store)
    print_findings(findings)
    return not findings.violations
