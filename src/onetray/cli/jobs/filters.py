"""The filters of `onetray jobs list`, which cancel, retry and priority have, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from onetray.cli.completion import complete_kinds, complete_queues, complete_states
from onetray.cli.format import age
from onetray.cli.options import label
from onetray.domain.clock import SECOND

Command = TypeVar("Command", bound=Callable[..., Any])

NAMES = ("states", "kind", "queue", "correlation", "labels", "since", "until", "entity", "priority_is")
_OPTIONS = (
    click.option(
        "--state", "states", multiple=True, shell_complete=complete_states,
        help="Only jobs in this state. May be repeated.",
    ),
    click.option("--kind", shell_complete=complete_kinds, help="Only tasks of this kind, or flows of this name."),
    click.option("--queue", shell_complete=complete_queues, help="Only tasks of this queue. Flows have none."),
    click.option("--correlation", metavar="ID", help="Only jobs with this correlation id."),
    click.option(
        "--label", "labels", metavar="NAME=VALUE", type=label, multiple=True,
        help="Only jobs with this label. May be repeated.",
    ),
    click.option("--since", type=age, metavar="AGE", help="Only jobs submitted in the last 90s, 15m, 2h, 30d."),
    click.option("--until", type=age, metavar="AGE", help="Only jobs submitted longer ago than 90s, 15m, 2h, 30d."),
    click.option("--entity", type=click.Choice(["task", "flow"]), help="Only single tasks, or only flows."),
    click.option("--priority", "priority_is", type=int, help="Only jobs with this priority."),
)  # fmt: skip


def filter_options(command: Command) -> Command:
    """Add the filters. The command gets them as keyword arguments: see `filters_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def is_filtered(values: dict[str, Any]) -> bool:
    return any(values[name] not in (None, ()) for name in NAMES)


def filters_of(values: dict[str, Any], now: int, namespace: str) -> dict[str, Any]:
    """The arguments of `engine.jobs` for these options."""

    def time(ago_s: float | None) -> int | None:
        return None if ago_s is None else max(now - int(ago_s * SECOND), 0)

    return {
        "namespace": namespace, "labels": dict(values["labels"]), "states": values["states"], "kind": values["kind"],
        "queue": values["queue"], "correlation_id": values["correlation"], "since": time(values["since"]) or 0,
        "until": time(values["until"]), "entity": values["entity"], "priority": values["priority_is"],
    }  # fmt: skip
