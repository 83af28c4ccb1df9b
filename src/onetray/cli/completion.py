"""`onetray completion`: print click's completion script for a shell; and complete ids and names from the database.

A completion must not hang or print errors: a child process reads the database, and is killed after a moment.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from onetray.engine.api import EngineApi

SHELLS = ("bash", "zsh", "fish")
PATIENCE_S = float(os.environ.get("_ONETRAY_COMPLETE_S", 1.5))
MOST = 100
Read = Callable[["EngineApi", str], Sequence[tuple[str, str]]]


@click.command(short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that makes your shell complete commands, options, and ids and names from the database.

    \b
    bash: onetray completion bash >> ~/.bashrc
    zsh:  onetray completion zsh >> ~/.zshrc
    fish: onetray completion fish > ~/.config/fish/completions/onetray.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "onetray", "_ONETRAY_COMPLETE").source())


def complete_jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The ids of the newest jobs."""
    return _complete(
        ctx,
        incomplete,
        lambda engine, ns: [(j.id, f"{j.kind} {j.state}") for j in engine.jobs(namespace=ns, limit=MOST).jobs],
    )


def complete_flow_jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The ids of the newest flows."""
    return _complete(
        ctx,
        incomplete,
        lambda engine, ns: [
            (j.id, f"{j.kind} {j.state}") for j in engine.jobs(namespace=ns, entity="flow", limit=MOST).jobs
        ],
    )


def complete_dead(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The ids of dead-lettered tasks."""
    return _complete(
        ctx,
        incomplete,
        lambda engine, ns: [(x.id, f"{x.kind} {x.reason_code}") for x in engine.dead_lines(namespace=ns, limit=MOST)],
    )


def complete_queues(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete(
        ctx, incomplete, lambda engine, ns: [(q.name, f"{q.ready} ready") for q in engine.queues(namespace=ns)]
    )


def complete_kinds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete(ctx, incomplete, lambda engine, ns: [(kind, "") for kind in engine.kinds(namespace=ns)])


def complete_limits(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The ids of limits."""
    return _complete(
        ctx,
        incomplete,
        lambda engine, ns: [(str(x.id), f"{x.name}, {x.numbers}") for x in engine.limits(namespace=ns, limit=MOST)],
    )


def complete_flows(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of declared flows."""
    return _complete(ctx, incomplete, lambda engine, ns: [(f.name, "") for f in engine.declared_flows(namespace=ns)])


def complete_schedules(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete(ctx, incomplete, lambda engine, ns: [(s.name, s.state) for s in engine.schedules(namespace=ns)])


def complete_states(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from onetray.domain.lifecycle import FLOW, TASK

    return [state for state in dict.fromkeys((*TASK.states, *FLOW.states)) if state.startswith(incomplete)]


def _complete(ctx: click.Context, incomplete: str, read: Read) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    found = _in_child(lambda: _read(ctx, read))
    return [CompletionItem(value, help=about or None) for value, about in found if value.startswith(incomplete)]


def _read(ctx: click.Context, read: Read) -> list[tuple[str, str]]:
    """Open the database that the line so far names, and read."""
    from onetray.cli.options import opened
    from onetray.cli.target import find_both

    database, namespace = find_both(ctx)
    with opened(database) as engine:
        return list(read(engine, namespace))


def _in_child(work: Callable[[], Any]) -> list[Any]:
    """The answer of a function that runs in a child process; empty if it fails or takes too long."""
    import json
    import select

    if not hasattr(os, "fork"):
        return []
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _answer(work, writing)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as answer:
            ready, _, _ = select.select([answer], [], [], PATIENCE_S)
            found = json.loads(answer.read() or b"[]") if ready else []
            return found if isinstance(found, list) else []
    except ValueError:
        return []
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _answer(work: Callable[[], Any], writing: int) -> None:
    """In the child: write the answer at once, and end without the cleanup of the parent."""
    import json

    try:
        # An app that is imported may print something.
        silence = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(silence, standard)
        data = json.dumps(work()).encode()
        while data:
            data = data[os.write(writing, data) :]
    finally:
        os._exit(0)
