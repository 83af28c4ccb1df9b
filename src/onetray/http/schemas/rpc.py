"""The bodies of reads and acts by name, of declarations, and of what workers tell about themselves.

Owns the way from a method of the engine to the body of its route: the parameters that it declares, strictly checked.
Their limits are the method's own to check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any, get_type_hints

from pydantic import ConfigDict, Field

from onetray.domain.worker import WORKER_STATES, WorkerBeat
from onetray.engine.reads import ApiMethod
from onetray.http.schemas.base import FIRST, SOME_ID, Name, Seconds, Strict, most
from onetray.http.schemas.derive import Made, PolicyBody, made_model

MAX_KINDS = 10_000
Text = Annotated[str, most("reason_chars")]
Whole = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Names = Annotated[list[Text], Field(max_length=1_000), FIRST]
TYPES: dict[Any, Any] = {
    str: Text, bool: bool, int: Whole, float: Seconds, Sequence[str]: Names,
    Sequence[int]: Annotated[list[Whole], Field(max_length=10_000), FIRST],
    Mapping[str, str]: Annotated[dict[str, Text], Field(max_length=100)],
}  # fmt: skip
"""What a parameter may be, by the type that its method declares."""
EXAMPLES: dict[str, Any] = {
    **dict.fromkeys(("task", "flow", "stage", "job"), SOME_ID), "keys": [1], "part": SOME_ID, "kind": "send_mail",
    "queue": "default", "for_s": 60.0, "correlation_id": SOME_ID,
}  # fmt: skip


def _example(**body: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [body]})


def parameters_body(method: ApiMethod[Any, Any]) -> type[Strict]:
    """The body of a read or an act. A parameter of a type that is not known here does not load."""
    given = method.parameters
    typed = {name: (_type(p.annotation), ... if p.default is p.empty else p.default) for name, p in given.items()}
    example = {name: EXAMPLES[name] for name, p in given.items() if p.default is p.empty}
    name = f"{method.name.title().replace('_', '')}Parameters"
    model: type[Strict] = made_model(name, Made, f"What `{method.name}` takes.", typed, example)
    return model


def _type(annotation: Any) -> Any:
    if annotation in TYPES:
        return TYPES[annotation]
    (inner,) = (part for part in annotation.__args__ if part is not type(None))
    return TYPES[inner] | None


class KindsBody(Strict):
    """Kinds of tasks with their policies, by name."""

    model_config = _example(policies={"send_mail": {"max_attempts": 5}})
    policies: Annotated[dict[str, PolicyBody], Field(max_length=MAX_KINDS)]


class LeaveBody(Strict):
    """Which worker has stopped."""

    model_config = _example(name="worker-1")
    name: Name


_HINTS: dict[str, Any] = {
    **get_type_hints(WorkerBeat), "queues": Annotated[tuple[Name, ...], Field(max_length=1_000)],
    "kinds": Annotated[tuple[Name, ...], Field(max_length=1_000)], "ttl_s": Seconds,
    **dict.fromkeys(("name", "host", "version"), Name),
    **dict.fromkeys(("pid", "concurrency", "running", "claimed"), Annotated[int, Field(ge=0, le=2**31 - 1)]),
    "state": Annotated[str, Field(json_schema_extra={"enum": list(WORKER_STATES)})],
}  # fmt: skip
WorkerBeatBody: Any = made_model(
    "WorkerBeatBody", Made, "A worker as it describes itself.",
    {f.name: (_HINTS[f.name], ... if f.default is MISSING else f.default) for f in fields(WorkerBeat)},
    {"name": "worker-1", "host": "host-a", "pid": 4711, "version": "0.1.0", "queues": ["default"]},
)  # fmt: skip
