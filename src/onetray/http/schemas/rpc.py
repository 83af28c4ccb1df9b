"""The request bodies of reads and acts by name, of kinds, and of worker registrations.

Derives the body of a read or an act from its declared parameters. The method checks their limits itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any, get_type_hints

from pydantic import ConfigDict, Field

from onetray.domain.worker import WORKER_STATES, WorkerBeat
from onetray.engine.reads import ApiMethod
from onetray.http.schemas.base import FAIL_FAST, SOME_ID, Name, Seconds, Strict, limited_by
from onetray.http.schemas.derive import GeneratedBody, PolicyBody, create

MAX_KINDS = 10_000
Text = Annotated[str, limited_by("reason_chars")]
Whole = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Names = Annotated[list[Text], Field(max_length=1_000), FAIL_FAST]
TYPES: dict[Any, Any] = {
    str: Text, bool: bool, int: Whole, float: Seconds, Any: Any, Sequence[str]: Names,
    Sequence[int]: Annotated[list[Whole], Field(max_length=10_000), FAIL_FAST],
    Mapping[str, str]: Annotated[dict[str, Text], Field(max_length=100)],
    Mapping[str, Any]: Annotated[dict[str, Any], Field(max_length=100)],
}  # fmt: skip
"""The types of parameters, by their annotation in the method."""
EXAMPLES: dict[str, Any] = {
    **dict.fromkeys(("task", "flow", "stage", "job", "context"), SOME_ID), "keys": [1], "part": SOME_ID,
    "kind": "send_mail", "queue": "default", "name": "thumbnails", "for_s": 60.0, "correlation_id": SOME_ID,
    "ids": [SOME_ID], "flows": [SOME_ID], "stages": [1], "alias": "order-17", "aliases": ["order-17"],
    "limit_id": 12, "value": '"acme"', "weight": 2.0,
    "action": "cancel", "id": SOME_ID, "ended_before": 1_700_000_000_000_000, "event": 12,
    "since": 1_700_000_000_000_000, "until": 1_700_000_000_000_000,
}  # fmt: skip


def _example(**body: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [body]})


def parameters_body(method: ApiMethod[Any, Any]) -> type[Strict]:
    """The body of a read or an act. Raises at import if a parameter has a type that TYPES lacks."""
    declared = method.parameters
    fields = {name: (_type(p.annotation), ... if p.default is p.empty else p.default) for name, p in declared.items()}
    example = {name: EXAMPLES[name] for name, p in declared.items() if p.default is p.empty}
    name = f"{method.name.title().replace('_', '')}Parameters"
    model: type[Strict] = create(name, GeneratedBody, f"The parameters of `{method.name}`.", fields, example)
    return model


def _type(annotation: Any) -> Any:
    if annotation in TYPES:
        return TYPES[annotation]
    (inner,) = (part for part in annotation.__args__ if part is not type(None))
    return TYPES[inner] | None


class KindsBody(Strict):
    """Policies of kinds, by name of the kind."""

    model_config = _example(policies={"send_mail": {"max_attempts": 5}})
    policies: Annotated[dict[str, PolicyBody], Field(max_length=MAX_KINDS)]


class LeaveBody(Strict):
    """The worker that has stopped."""

    model_config = _example(name="worker-1")
    name: Name


_HINTS: dict[str, Any] = {
    **get_type_hints(WorkerBeat), "queues": Annotated[tuple[Name, ...], Field(max_length=1_000)],
    "kinds": Annotated[tuple[Name, ...], Field(max_length=1_000)], "ttl_s": Seconds,
    **dict.fromkeys(("name", "host", "version"), Name),
    **dict.fromkeys(("pid", "concurrency", "running", "claimed"), Annotated[int, Field(ge=0, le=2**31 - 1)]),
    "state": Annotated[str, Field(json_schema_extra={"enum": list(WORKER_STATES)})],
}  # fmt: skip
WorkerBeatBody: Any = create(
    "WorkerBeatBody", GeneratedBody, "A worker's description of itself.",
    {f.name: (_HINTS[f.name], ... if f.default is MISSING else f.default) for f in fields(WorkerBeat)},
    {"name": "worker-1", "host": "host-a", "pid": 4711, "version": "0.1.0", "queues": ["default"]},
)  # fmt: skip
