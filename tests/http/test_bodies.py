"""Bodies become commands by a short way where the fields need no decoding: it must not differ from the long one."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from onetray.domain.verbs import sendable_verbs
from onetray.http.schemas.bodies import ClaimBody, FlowBody, TaskBody
from onetray.http.schemas.derive import command_body
from onetray.remote.command_codec import decode_fields

FIELDS: dict[str, Any] = {
    "kind": "noop", "payload": {"a": [1, None, 2.5]}, "priority": 5.0, "labels": {"tenant": "a"}, "max_attempts": 3,
}  # fmt: skip
BODIES = [
    *((command_body(kind), kind.declared.example) for kind in sendable_verbs().values()),
    (TaskBody, FIELDS),
    (TaskBody, {**FIELDS, "run_at": "2026-11-16T09:30:00Z", "policy": {"max_attempts": 2}}),
    (ClaimBody, {"worker": "w", "kinds": ["a", "b"], "wait_s": 5}),
    (FlowBody, {"name": "f", "stages": []}),
]


def sent(model: Any, example: dict[str, Any]) -> Any:
    """A body with the fields of an example, and those that it must have."""
    body = dict(model.model_config.get("json_schema_extra", {}).get("examples", [{}])[0]) | example
    return model.model_validate_json(orjson.dumps(body))


@pytest.mark.parametrize(("model", "example"), BODIES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_body_has_the_values_that_the_command_codec_would_decode(model: Any, example: dict[str, Any]) -> None:
    body = sent(model, example)
    dumped = body.model_dump(exclude_unset=True, exclude=body.extra_fields)
    assert body.field_values() == decode_fields(body.describes, dumped, body.left_out)


def test_whole_numbers_and_lists_are_what_the_engine_takes() -> None:
    assert sent(TaskBody, FIELDS).field_values()["priority"] == 5
    assert type(sent(TaskBody, FIELDS).field_values()["priority"]) is int
    assert sent(ClaimBody, {"worker": "w", "kinds": ["a"]}).field_values()["kinds"] == ("a",)
