"""Jobnik: jobs, stages and tasks at /v1, with its states and errors. The engine decides. See docs/jobnik.md."""

from onetray.dialects.jobnik import routes, values
from onetray.dialects.kit import Dialect
from onetray.dialects.method_routes import router_of

DIALECT = Dialect(
    "jobnik", "/v1", router_of(routes.Jobnik, "/v1", "jobnik"), routes.jobnik_error, title="Jobnik's API",
    description="Jobs of stages of tasks, which workers dequeue by the type of their stage.",
    states=(values.JOB_STATES, values.STAGE_STATES, values.TASK_STATES),
)  # fmt: skip
