"""Jobnik: jobs, stages and tasks at /v1, with Jobnik's states and errors. See docs/jobnik.md.

routes.py has the routes, errors.py the errors, values.py maps values. The engine decides what is allowed.
"""

from onetray.dialects.jobnik.errors import jobnik_error
from onetray.dialects.jobnik.routes import router
from onetray.dialects.jobnik.states import STATE_TABLES
from onetray.dialects.kit import Dialect

DIALECT = Dialect(
    name="jobnik",
    prefix="/v1",
    router=router,
    shape=jobnik_error,
    title="Jobnik's API",
    description="Jobs of stages of tasks, which workers dequeue by the type of their stage.",
    states=STATE_TABLES,
)
