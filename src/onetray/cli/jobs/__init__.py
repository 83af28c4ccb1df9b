"""`onetray jobs`: list, inspect, watch, cancel, pause, resume, retry and delete jobs, which are tasks or flows."""

from __future__ import annotations

import click

from onetray.cli.jobs import act, follow, reads


@click.group(short_help="List, inspect, watch, cancel, pause, resume, retry and delete jobs.")
def jobs() -> None:
    """List, inspect, watch, cancel, pause, resume, retry and delete jobs. A job is a single task or a flow.

    The first or last characters of an id, at least 6, are enough if only one of the newest 1,000 jobs has them.
    """


for command in (
    reads.list_, reads.show, reads.tree, reads.timeline, follow.watch, follow.events, follow.logs, act.cancel,
    act.pause, act.resume, act.retry, act.priority, act.metadata, act.delete, reads.explain, reads.actions,
):  # fmt: skip
    jobs.add_command(command)
