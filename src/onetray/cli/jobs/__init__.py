"""`onetray jobs`: look at jobs, and do something about them. A job is a single task or a flow.

Owns the group. Looking is in look.py, following in follow.py, acting in act.py.
"""

from __future__ import annotations

import click

from onetray.cli.jobs import act, follow, look


@click.group(short_help="Look at jobs, cancel, pause, resume and retry them.")
def jobs() -> None:
    """Look at jobs, and do something about them. A job is a single task or a flow.

    An id may be given by its beginning or its end, 6 characters at least, if only one of the newest 1,000 has it.
    """


for command in (
    look.list_, look.show, look.tree, follow.events, follow.logs, act.cancel, act.pause, act.resume, act.retry,
    look.explain, look.actions,
):  # fmt: skip
    jobs.add_command(command)
