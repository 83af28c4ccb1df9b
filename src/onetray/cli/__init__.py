"""The command line: `onetray COMMAND`.

Owns how a command is found, how an error is told, and the exit codes. What a command does is in a file beside this
one, which is loaded when the command is asked for; the engine and the drivers are loaded when it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from onetray import __version__
from onetray.domain.errors import Conflict, InvalidInput, NotFound, OnetrayError

OK, FOUND, USAGE, DATABASE, ABSENT, REFUSED = range(6)
INTERRUPTED, READER_LEFT = 130, 141
"""What a shell reports for a program that SIGINT or SIGPIPE has ended."""

EXIT_CODES = """\b
Exit codes:
  0  all is well
  1  something was found: a broken rule, a missing migration, a failed check
  2  bad usage or bad input
  3  the database cannot be reached or is not set up
  4  there is no such job, stage or task
  5  refused: the lifecycle does not allow it now
"""

COMMANDS = {
    "breakers": "onetray.cli.queues",
    "completion": "onetray.cli.completion",
    "config": "onetray.cli.config",
    "dead": "onetray.cli.dead",
    "demo": "onetray.cli.demo",
    "doctor": "onetray.cli.doctor",
    "jobs": "onetray.cli.jobs",
    "lifecycle": "onetray.cli.lifecycle",
    "migrate": "onetray.cli.database",
    "prune": "onetray.cli.database",
    "queues": "onetray.cli.queues",
    "serve": "onetray.cli.serve",
    "stages": "onetray.cli.stages",
    "submit": "onetray.cli.submit",
    "tasks": "onetray.cli.tasks",
    "token": "onetray.cli.token",
    "up": "onetray.cli.serve",
    "verify": "onetray.cli.database",
    "worker": "onetray.cli.worker",
    "workers": "onetray.cli.queues",
}
"""Where each command lives: a function of the same name."""

SUMMARIES = {
    "breakers": "See circuit breakers, open and close them.",
    "completion": "Print a shell's completion script.",
    "config": "Print each setting and where it came from.",
    "dead": "See dead letters, and redrive them.",
    "demo": "See the engine work.",
    "doctor": "Look the set-up over, and say what to do.",
    "jobs": "Look at jobs, cancel, pause, resume and retry them.",
    "lifecycle": "Print a lifecycle as it is declared.",
    "migrate": "Bring the database's schema up to date.",
    "prune": "Remove old jobs for good.",
    "queues": "See what waits in the queues; pause and resume them.",
    "serve": "Serve the API.",
    "stages": "See the stages of a flow; approve, reject or skip one.",
    "submit": "Submit a task or a flow.",
    "tasks": "See the tasks of a flow or a stage.",
    "token": "Create, list and revoke the tokens of a server.",
    "up": "Serve the API, and run an app's tasks in the same process.",
    "verify": "Check every rule on every row.",
    "worker": "Run the tasks of an app.",
    "workers": "List the workers.",
}
"""What the help says of each, so that it comes at once: a command that has no line here is loaded for it."""


class Cli(click.Group):
    """A group that loads its commands late and tells every error in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, SUMMARIES.get(name) or summary_of(self, ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _reader_may_leave():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _reader_may_leave(), _known_errors():
            return super().invoke(ctx)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """As click's own, but an error is one line on stderr, also under click's test runner."""

        def run() -> Any:
            return super(Cli, self).main(args, "onetray", complete_var, standalone_mode=False, **extra)

        if not standalone_mode:
            return run()
        sys.exit(_exit_code(run))


def summary_of(group: click.Group, ctx: click.Context, name: str) -> str:
    """What a command says of itself in one line."""
    command = group.get_command(ctx, name)
    return command.get_short_help_str(200) if command is not None else ""


def _exit_code(run: Callable[[], Any]) -> int:
    try:
        code = run()
        with _reader_may_leave():
            if sys.stdout is not None:  # Started with it closed.
                sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as e:
        e.show()
        return e.exit_code
    except click.ClickException as e:
        _tell(e)
        return e.exit_code
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.Abort:
        click.echo("onetray: interrupted", err=True)
        return INTERRUPTED
    return code if isinstance(code, int) else OK


class BadInput(click.ClickException):
    """What was given cannot be used. The message says what to give."""

    exit_code = USAGE


class DatabaseUnusable(click.ClickException):
    """The database cannot be reached or is not set up. The message says what to do."""

    exit_code = DATABASE


class Absent(click.ClickException):
    """There is nothing of this name or id."""

    exit_code = ABSENT


class Refused(click.ClickException):
    """It was understood, and the lifecycle says no. The message says what is allowed."""

    exit_code = REFUSED


def _tell(error: click.ClickException) -> None:
    message = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        message = f"{message.rstrip('.')}. Try '{error.ctx.command_path} --help'"
    click.echo(f"onetray: {message}", err=True)


@contextmanager
def _known_errors() -> Iterator[None]:
    """Turn what onetray and the database drivers raise into a line and an exit code. A bug keeps its traceback."""
    try:
        yield
    except InvalidInput as e:
        raise BadInput(str(e)) from e
    except NotFound as e:
        raise Absent(str(e)) from e
    except Conflict as e:
        raise Refused(_with_allowed(e)) from e
    except OnetrayError as e:
        raise DatabaseUnusable(str(e)) from e
    except Exception as e:
        drivers = [sys.modules[name] for name in ("apsw", "psycopg") if name in sys.modules]
        if isinstance(e, tuple(driver.Error for driver in drivers)):
            raise DatabaseUnusable(f"the database cannot be used: {type(e).__name__}: {e}") from e
        raise


def _with_allowed(e: Conflict) -> str:
    """What was refused, and what is allowed, said once."""
    allowed = e.facts.get("allowed")
    return f"{e}; allowed now: {', '.join(allowed)}" if allowed and "allowed" not in str(e) else str(e)


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """End quietly when nobody reads the output any more, as in `onetray lifecycle | head -1`."""
    try:
        yield
    except BrokenPipeError:
        # The interpreter flushes once more at its end: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(READER_LEFT) from None


@click.command(
    cls=Cli,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EXIT_CODES,
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """A durable job engine with an explicit, enforced state machine."""
