"""The filters of lists, in the URL of a page: what the parameters mean, and how they are passed on.

Owns the parameters of jobs and of dead letters. The engine checks their values.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from onetray.dashboard.view import Values
from onetray.domain.clock import SECOND
from onetray.domain.errors import InvalidInput

WITHIN = {"15m": 900, "1h": 3_600, "6h": 21_600, "24h": 86_400, "7d": 604_800}
"""The seconds of the choices of how long ago a job was submitted."""
WITHIN_NAMES = {
    "15m": "last 15 minutes", "1h": "last hour", "6h": "last 6 hours", "24h": "last 24 hours", "7d": "last 7 days",
}  # fmt: skip
JOB_PARAMETERS = ("q", "state", "kind", "queue", "label", "entity", "within", "from", "to")
LETTER_PARAMETERS = ("kind", "reason", "error", "alike")


def job_filters(query: Values, now: int) -> dict[str, Any]:
    """The filters of `engine.jobs`, without those that are not set."""
    labels = dict(_label(pair) for pair in query.many("label"))
    since, until = _time(query.text("from"), "from"), _time(query.text("to"), "to")
    if (within := query.text("within")) in WITHIN:
        since = max(since or 0, now - WITHIN[within] * SECOND)
    found = {
        "text": query.text("q"), "states": query.many("state"), "kind": query.text("kind"),
        "queue": query.text("queue"), "labels": labels, "entity": query.text("entity"), "since": since, "until": until,
        "ids": query.many("id"),
    }  # fmt: skip
    return {name: value for name, value in found.items() if value}


def letter_filters(query: Values) -> dict[str, Any]:
    """The filters of `engine.dead_lines`, without those that are not set."""
    found: dict[str, Any] = {name: query.text(name) for name in LETTER_PARAMETERS}
    found["ids"] = query.many("id")
    return {name: value for name, value in found.items() if value}


def parameters(query: Values, names: tuple[str, ...]) -> dict[str, list[str]]:
    """The parameters of a URL with these names, to be passed on to another page."""
    return {name: values for name in names if (values := query.many(name))}


def frozen(chosen: dict[str, list[str]], now: int) -> dict[str, list[str]]:
    """The same parameters with a time instead of an age: what is shown for a question is what is done."""
    within = chosen.get("within", [""])[-1]
    if within not in WITHIN:
        return chosen
    since = datetime.fromtimestamp(now / SECOND - WITHIN[within], UTC).strftime("%Y-%m-%dT%H:%M:%S")
    # The later of two times counts.
    return {
        **{name: v for name, v in chosen.items() if name != "within"},
        "from": [max([since, *chosen.get("from", [])])],
    }


def _label(pair: str) -> tuple[str, str]:
    name, _, value = pair.partition("=")
    if not name or not value:
        raise InvalidInput(f"a label is written as name=value, not {pair[:50]!r}", field="label")
    return name, value


def _time(given: str, name: str) -> int | None:
    """A time in UTC, as a browser sends it."""
    if not given:
        return None
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise InvalidInput(f"{name} must be a time like 2026-11-16T09:30, not {given[:30]!r}", field=name) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * SECOND)
