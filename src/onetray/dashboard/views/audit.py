"""Who did what: pauses, approvals, answers, cancels, retries, tokens. Newest first, from the log."""

from __future__ import annotations

from typing import Any, NamedTuple

from onetray.dashboard.pages import page
from onetray.dashboard.view import View
from onetray.domain.lifecycle import ABOUT_TOKENS
from onetray.domain.machine import USER
from onetray.domain.task import Event
from onetray.domain.token import ADMIN
from onetray.engine.audit_api import ACTIONS

PER_PAGE = 50
SUBJECTS = ("queue", "breaker", "token", "limit", "weight")
"""What is not a job."""
NAMED_BY = ("queue", "breaker", "token", "limit", "kind")
"""The keys of an event's payload that name it."""
BADGES = {
    "paused": "waiting", "waiting": "waiting", "opened": "failed", "rejected": "failed", "revoked": "failed",
    "deleted": "failed", "cancelled": "cancelled", "cancel_requested": "cancelled", "approved": "succeeded",
    "resumed": "succeeded", "closed": "succeeded", "created": "running", "redriven": "running", "retried": "running",
}  # fmt: skip


class AuditLine(NamedTuple):
    """An action of a person."""

    event: Event
    person: str
    badge: str
    subject: str | None
    """The name of a queue, a breaker, a token or a limit; None if it is about a job."""
    others: int
    """How many more tasks, stages or flows it applied to."""


@page("/audit", title="Audit", nav=80)
def audit(view: View) -> dict[str, Any]:
    person, type_ = view.query.text("person"), view.query.text("type")
    before = view.query.whole("before", 0, most=2**62)
    # An argument of its own: only administrators may pass it.
    about_tokens = {"tokens": True} if view.may(ADMIN) else {}
    found = view.engine.audit(
        before=before or None, limit=PER_PAGE, person=person or None, types=[type_] if type_ else (), **about_tokens
    )
    return {
        "lines": [_line(event, count) for event, count in zip(found.events, found.counts, strict=True)],
        "types": sorted(name for name in ACTIONS if about_tokens or name not in ABOUT_TOKENS), "person": person,
        "type": type_, "older": None if found.before is None else view.url(before=found.before),
        "newest": view.url(before=None) if before else None,
    }  # fmt: skip


def _line(event: Event, count: int) -> AuditLine:
    verb = event.type.partition(".")[2]
    payload = event.payload if isinstance(event.payload, dict) else {}
    subject = None
    if event.type.partition(".")[0] in SUBJECTS:
        name = payload.get("name") or next((payload[key] for key in NAMED_BY if key in payload), "")
        subject = f"{event.type.partition('.')[0]} {name}"
    return AuditLine(event, event.actor.removeprefix(f"{USER}:"), BADGES.get(verb, "queued"), subject, count - 1)
