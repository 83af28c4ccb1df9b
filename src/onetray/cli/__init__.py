"""The command line: `onetray COMMAND`.

Owns the lookup of commands, the printing of errors, and the exit codes. Each command's module is imported when the
command is used, and the engine and the drivers when it runs, so that help is fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from shlex import quote
from typing import Any

import click

from onetray import __version__
from onetray.domain.errors import Conflict, Forbidden, InvalidInput, NotApprover, NotFound, OnetrayError, Unauthorized

OK, CHECK_FAILED, USAGE, DATABASE, ABSENT, REFUSED, NOT_PERMITTED = range(7)
INTERRUPTED, BROKEN_PIPE = 130, 141
"""The exit codes that a shell reports after SIGINT and SIGPIPE."""
SOURCES = "onetray.sources"
"""In the context: which database is used, and where its URL and the namespace come from. target.py writes it."""

EXIT_CODES = """\b
Exit codes:
  0  success
  1  a check failed: a broken rule, a missing migration, a job that failed
  2  wrong usage or invalid input
  3  the database or the server cannot be reached or is not set up
  4  no such job, stage, task, flow, queue, limit or token
  5  the lifecycle does not allow this now
  6  not permitted: by the token, or to anybody but the approver
"""

COMMANDS = {
    "audit": "onetray.cli.overview",
    "breakers": "onetray.cli.queues",
    "bulk": "onetray.cli.bulk",
    "completion": "onetray.cli.completion",
    "config": "onetray.cli.config",
    "dead": "onetray.cli.dead",
    "demo": "onetray.cli.demo",
    "doctor": "onetray.cli.doctor",
    "events": "onetray.cli.queues",
    "flows": "onetray.cli.flows",
    "jobs": "onetray.cli.jobs",
    "lifecycle": "onetray.cli.lifecycle",
    "limits": "onetray.cli.limits",
    "mcp": "onetray.cli.mcp",
    "migrate": "onetray.cli.database",
    "prune": "onetray.cli.database",
    "queues": "onetray.cli.queues",
    "schedules": "onetray.cli.schedules",
    "serve": "onetray.cli.serve",
    "shell": "onetray.cli.shell",
    "stages": "onetray.cli.stages",
    "stats": "onetray.cli.overview",
    "submit": "onetray.cli.submit",
    "tasks": "onetray.cli.tasks",
    "token": "onetray.cli.token",
    "up": "onetray.cli.serve",
    "verify": "onetray.cli.database",
    "worker": "onetray.cli.worker",
    "workers": "onetray.cli.queues",
}
"""The module of each command, which has a function of the same name."""

SUMMARIES = {
    "audit": "List what people have done, newest first.",
    "breakers": "List circuit breakers; open and close one.",
    "bulk": "List, watch, stop and resume operations on many jobs.",
    "completion": "Print a shell completion script.",
    "config": "Print each setting and its source.",
    "dead": "List dead letters and redrive them.",
    "demo": "Watch two workers run a pipeline and survive a crash.",
    "doctor": "Check the installation and suggest fixes.",
    "events": "Print the events of a namespace.",
    "flows": "List declared flows; show, submit and forget one.",
    "jobs": "List, inspect, watch, cancel, pause, resume, retry and delete jobs.",
    "lifecycle": "Print the states and transitions of a lifecycle.",
    "limits": "List limits, change them live, set weights.",
    "mcp": "Serve the tools for agents over stdio (MCP).",
    "migrate": "Bring the database's schema up to date.",
    "prune": "Delete old jobs permanently.",
    "queues": "List queues; pause and resume one.",
    "schedules": "Add, list, explain, pause, trigger and backfill schedules.",
    "serve": "Serve the API.",
    "shell": "Open a Python shell with the app and its engine.",
    "stages": "List the stages of a flow; approve, reject, skip or cancel one.",
    "stats": "Show what happened to tasks, by time.",
    "submit": "Submit a task or a flow.",
    "tasks": "List the tasks of a flow or a stage.",
    "token": "Create, list and revoke API tokens.",
    "up": "Serve the API and run an app's tasks in one process.",
    "verify": "Check every rule on every row.",
    "worker": "Run the tasks of an app.",
    "workers": "List the workers.",
}
"""The summaries in the help, so that it need not import the commands."""


class Cli(click.Group):
    """A group that imports its commands late and prints every error in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {name!r}.{_nearest_command(name)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, SUMMARIES.get(name) or summary_of(self, ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _quiet_broken_pipe():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _quiet_broken_pipe(), _known_errors(ctx):
            return super().invoke(ctx)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """As click's main, but prints each error as one line on stderr, also under click's test runner."""

        def run() -> Any:
            return super(Cli, self).main(args, "onetray", complete_var, standalone_mode=False, **extra)

        if not standalone_mode:
            return run()
        sys.exit(_exit_code(run))


def _nearest_command(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, 3, cutoff=0.7)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def summary_of(group: click.Group, ctx: click.Context, name: str) -> str:
    """The one-line help of a command."""
    command = group.get_command(ctx, name)
    return command.get_short_help_str(200) if command is not None else ""


def _exit_code(run: Callable[[], Any]) -> int:
    try:
        code = run()
        with _quiet_broken_pipe():
            if sys.stdout is not None:  # None if the process was started with stdout closed.
                sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as e:
        e.show()
        return e.exit_code
    except click.ClickException as e:
        _print_error(e)
        return e.exit_code
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.Abort:
        click.echo("onetray: interrupted", err=True)
        return INTERRUPTED
    return code if isinstance(code, int) else OK


class BadInput(click.ClickException):
    """An argument or its value is invalid. The message says what to pass instead."""

    exit_code = USAGE
    frames = ""
    """Where the code of an app raised the error, as in a traceback."""

    @classmethod
    def of(cls, error: InvalidInput, hint: str = "") -> BadInput:
        made = cls(f"{error}{hint}")
        made.frames = str(error.facts.get("traceback", ""))
        return made


class DatabaseUnusable(click.ClickException):
    """The database cannot be reached or is not set up. The message says what to do."""

    exit_code = DATABASE


class Absent(click.ClickException):
    """No entity has this name or id."""

    exit_code = ABSENT


class Refused(click.ClickException):
    """The lifecycle does not allow the command now. The message says what is allowed."""

    exit_code = REFUSED


class NotPermitted(click.ClickException):
    """The token or the approval does not allow the command. The message says who may, or what to pass."""

    exit_code = NOT_PERMITTED


def _print_error(error: click.ClickException) -> None:
    message = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        end = "" if message.endswith(("?", "?)")) else "."
        message = f"{message.rstrip('.')}{end} Try '{error.ctx.command_path} --help'"
    click.echo(f"{getattr(error, 'frames', '')}onetray: {message}", err=True)


@contextmanager
def _known_errors(ctx: click.Context) -> Iterator[None]:
    """Turn errors of onetray and of the database drivers into a message and an exit code. A bug keeps its traceback."""
    try:
        yield
    except InvalidInput as e:
        raise BadInput.of(e) from e
    except NotFound as e:
        raise Absent(f"{e}{_where(ctx)}") from e
    except Conflict as e:
        raise Refused(_with_allowed(e)) from e
    except (Unauthorized, Forbidden) as e:
        raise NotPermitted(f"{_not_permitted(ctx, e)}{_where(ctx)}") from e
    except OnetrayError as e:
        raise DatabaseUnusable(f"{e}{_where(ctx)}") from e
    except Exception as e:
        drivers = [sys.modules[name] for name in ("apsw", "psycopg") if name in sys.modules]
        if isinstance(e, tuple(driver.Error for driver in drivers)):
            raise DatabaseUnusable(f"the database cannot be used: {type(e).__name__}: {e}{_where(ctx)}") from e
        raise


def _where(ctx: click.Context) -> str:
    """Which database it was, and who named it: it may not be the one that the user meant."""
    sources = ctx.meta.get(SOURCES, {})
    return f" (database {sources['url']}, from {sources['database']})" if {"url", "database"} <= set(sources) else ""


def _not_permitted(ctx: click.Context, e: Unauthorized | Forbidden) -> str:
    """The error's message, with what the user can pass to be permitted."""
    if isinstance(e, NotApprover) and not ctx.meta.get(SOURCES, {}).get("url", "").startswith("http"):
        return f"{e}; to answer in that name: --by {quote(e.owner)}"
    if not isinstance(e, Unauthorized):
        return str(e)
    if ctx.invoked_subcommand == "worker":
        return f"{e}; the token comes from --token or ONETRAY_TOKEN"
    if os.environ.get("ONETRAY_TOKEN"):
        return f"{e}; the token comes from ONETRAY_TOKEN"
    return "the server needs a token: set ONETRAY_TOKEN; `onetray token create` with its database creates one"


def _with_allowed(e: Conflict) -> str:
    """The error's message, with the allowed actions unless it has them already."""
    allowed = e.facts.get("allowed")
    return f"{e}; allowed now: {', '.join(allowed)}" if allowed and "allowed" not in str(e) else str(e)


@contextmanager
def _quiet_broken_pipe() -> Iterator[None]:
    """Exit without a traceback when the reader closes the pipe, as in `onetray lifecycle | head -1`."""
    try:
        yield
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit; redirect that to /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(BROKEN_PIPE) from None


@click.command(
    cls=Cli,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EXIT_CODES,
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """A durable job engine with an explicit, enforced state machine."""
