"""What is submitted: tasks, flows, their stages and their members."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter

from onetray.domain.commands import Submit
from onetray.domain.flow_commands import AddTasks, SubmitFlow
from onetray.http.schemas.base import FIRST, Strict, most
from onetray.http.schemas.derive import OUTSIDE, StageBody, body_of, example_of

TaskBody: Any = body_of(Submit, "TaskBody", without=OUTSIDE, example=example_of(Submit), about="A single task.")
FlowBody: Any = body_of(
    SubmitFlow, "FlowBody", without=(*OUTSIDE, "stages"), example=example_of(SubmitFlow),
    about="A flow: it has stages.",
    stages=(Annotated[tuple[StageBody, ...], FIRST, most("stages")], ...),
)  # fmt: skip
"""Unlike the command it always says its stages, be it none: by them it is known for a flow."""
MembersBody: Any = body_of(
    AddTasks, "MembersBody", without=(*OUTSIDE, "stage"), example=example_of(AddTasks),
    about="Tasks that are to be added to a stage.",
)  # fmt: skip


def _which(value: Any) -> str:
    has = "stages" in value if isinstance(value, dict) else hasattr(value, "stages")
    return "flow" if has else "task"


JobBody: TypeAlias = Annotated[
    Annotated[TaskBody, Tag("task")] | Annotated[FlowBody, Tag("flow")], Discriminator(_which)
]  # fmt: skip
"""A task, or a flow when it has stages."""
JOB: TypeAdapter[Any] = TypeAdapter(JobBody)


class BatchBody(Strict):
    """Many jobs at once. Each is answered in its place."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"jobs": [{"kind": "send_mail", "payload": {"to": "ann@example.com"}}]}]}
    )
    jobs: Annotated[tuple[JobBody, ...], FIRST, most("batch")] = Field(min_length=1)
