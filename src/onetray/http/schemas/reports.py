"""What workers say, claims and reports about what they hold; and any commands in a batch.

A report names the fence and the worker of its claim: without them it could touch what somebody else holds.
"""

from __future__ import annotations

from typing import Annotated, Any, Union

from pydantic import Field, create_model

from onetray.domain.commands import Claim, Report, Submit
from onetray.domain.verbs import VERBS, sendable_verbs
from onetray.http.schemas.base import FIRST, SOME_ID, Strict, most
from onetray.http.schemas.derive import TICKET, body_of, command_body, example_of

MOST_WAIT_S = 30

ClaimBody: Any = body_of(
    Claim, "ClaimBody", example={**example_of(Claim), "wait_s": 20},
    wait_s=(float, Field(0, ge=0, le=MOST_WAIT_S, description="How long to wait when there is nothing to claim.")),
)  # fmt: skip


def _batch(name: str, field: str, kinds: list[Any], about: str, example: dict[str, Any]) -> Any:
    """A body with many commands, each known by its verb."""
    one: Any = Union[tuple(map(command_body, kinds))]  # noqa: UP007
    many: Any = Annotated[tuple[Annotated[one, Field(discriminator="verb")], ...], FIRST, most("batch")]
    fields: dict[str, Any] = {field: (many, Field(min_length=1))}
    model = create_model(name, __base__=Strict, __doc__=about, **fields)
    model.model_config = {**model.model_config, "json_schema_extra": {"examples": [{field: [example]}]}}
    model.model_rebuild(force=True)
    return model


ReportsBody: Any = _batch(
    "ReportsBody", "reports", [kind for kind in VERBS.values() if issubclass(kind, Report)],
    "Many reports at once. Each is answered in its place.",
    {"verb": "succeed", "task": SOME_ID, **TICKET, "result": 1},
)  # fmt: skip


def commands_body() -> Any:
    """Any commands that may be sent. Made when it is asked for: whatever is declared by then is in it."""
    return _batch(
        "CommandsBody", "commands", list(sendable_verbs().values()),
        "Many commands at once. Each is answered in its place.", {"verb": Submit.verb, **example_of(Submit)},
    )  # fmt: skip
