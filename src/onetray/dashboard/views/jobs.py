"""Jobs: filters in the URL, counts by state, and a table that stays fast among a million jobs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, cast

from onetray.dashboard.filters import JOB_PARAMETERS, WITHIN_NAMES, job_filters, parameters
from onetray.dashboard.pages import PAGES, page
from onetray.dashboard.view import View
from onetray.domain.lifecycle import FLOW, TASK
from onetray.domain.listing import JobCounts
from onetray.engine.list_scan import walk_jobs
from onetray.http.params import cursor_at, cursor_position

if TYPE_CHECKING:
    from onetray.engine.api import EngineApi

LIMIT = 50
SEARCH_S = 0.02
"""After this time no further read begins: a link continues the search."""
MANY = 10_000
"""Higher counts are shown as this many or more."""
TABS = (
    "queued", "assigned", "running", "blocked", "waiting_input", "succeeded", "failed", "dead_lettered", "cancelled",
)  # fmt: skip
OTHER_TABS = tuple(state for state in FLOW.states if state not in TASK.states)
"""States that only flows have: shown if there are any."""
CHOICES = 200


@page("/jobs", title="Jobs", nav=20)
def jobs(view: View) -> dict[str, Any]:
    filters = job_filters(view.query, view.now)
    cursor = view.query.text("before")
    before = cursor_position("jobs", cursor) if cursor else None
    found, next_ = walk_jobs(
        cast("EngineApi", view.engine), view.namespace, before, LIMIT, within_s=SEARCH_S, **filters
    )
    ids = [job.id for job in found]
    counts = view.engine.count_by_state(**{**filters, "states": ()})
    return {
        "jobs": found, "counts": counts, "tabs": _tabs(view, counts), "labels": labels_by_job(view, ids),
        "percentages": view.engine.percentages(ids), "filters": filters, "is_filtered": bool(filters),
        "older": None if next_ is None else view.url(before=cursor_at("jobs", next_)), "limit": LIMIT,
        "newest": view.url(before=None) if cursor else None, "job_url": job_url(view), "within": WITHIN_NAMES,
        "kinds": view.engine.kinds(limit=CHOICES), "chosen": parameters(view.query, JOB_PARAMETERS),
    }  # fmt: skip


def _tabs(view: View, counts: JobCounts) -> list[dict[str, Any]]:
    """A link for each state, with its number of jobs."""
    chosen = view.query.many("state")
    total = sum(counts.states.values())
    tabs = [{"name": "all", "count": count_text(total, counts), "href": _to_state(view, None), "current": not chosen}]
    for state in (*TABS, *OTHER_TABS):
        number = counts.states.get(state, 0)
        if state in TABS or number or state in chosen:
            tabs.append({
                "name": state.replace("_", " "), "count": count_text(number, counts), "href": _to_state(view, state),
                "current": chosen == [state],
            })  # fmt: skip
    return tabs


def _to_state(view: View, state: str | None) -> str:
    return view.url(state=state, before=None)


def count_text(number: int, counts: JobCounts) -> str:
    if number > MANY:
        return f"{MANY:,}+"
    return f"{number:,}" if counts.is_complete else f"{number:,}+"


def labels_by_job(view: View, ids: list[str]) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for label in view.engine.labels_of(ids):
        found[label.id].append((label.name, label.value))
    return found


def job_url(view: View) -> Any:
    """A function that returns the URL of a job's page."""
    if "job" in PAGES:
        return lambda id_: view.link("job", id=id_)
    return lambda id_: f"/api/v1/jobs/{id_}"
