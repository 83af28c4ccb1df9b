"""so1: jobs at /api/jobs, with so1's states and errors. See docs/so1.md.

routes.py has the routes and errors, job.py maps values, stream.py streams them. The engine decides what is allowed.
"""

from onetray.dialects.kit import Dialect, StateTable
from onetray.dialects.so1.job import PENDING, STATES, SUCCESS, TRANSITIONS
from onetray.dialects.so1.routes import router, shape
from onetray.domain.lifecycle import FLOW, TASK
from onetray.domain.state_table import Pair

SKIPPED: dict[Pair, str] = {(PENDING, SUCCESS): "all stages of the flow were skipped"}

DIALECT = Dialect(
    name="so1",
    prefix="/api/jobs",
    router=router,
    shape=shape,
    title="so1's job API",
    description="Jobs with five states, idempotent submits, and a stream of states and log lines.",
    states=tuple(
        StateTable(
            entity=machine.entity,
            states={state: STATES[state] for state in machine.states},
            transitions=TRANSITIONS,
            second_after=("start",),
            departures=SKIPPED if machine is FLOW else {},
        )
        for machine in (TASK, FLOW)
    ),
)
