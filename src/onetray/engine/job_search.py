"""Find jobs by their ids, or by a text.

Owns what a text finds: see `engine.jobs`. Only what an index finds, so that it stays fast among many jobs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from uuid import UUID

from onetray.domain.checks import listed, task_id, text
from onetray.domain.errors import InvalidInput
from onetray.store.base import Rows

MAX_IDS = 1_000
MAX_FOUND = 1_000
"""How many jobs or kinds a text finds at most."""
_ID_START = re.compile(r"[\da-f]{8,32}")
"""The first eight digits of an id are those of all jobs of a minute; fewer would be those of all jobs of hours."""


def keys_of_ids(read: Callable[..., Rows], ids: Sequence[str]) -> set[int]:
    """The keys of the jobs with these ids, or of which a task has one."""
    wanted = [task_id(id_, "ids") for id_ in listed(ids, "ids", 0, MAX_IDS)]
    return {int(key) for (key,) in read("jobs_of_ids", ids=wanted)}


def keys_of_text(read: Callable[..., Rows], wanted: str, namespace: str, max_chars: int) -> tuple[set[int], list[int]]:
    """The keys of the jobs that a text names; if it names none, the kinds whose names contain it."""
    wanted = text(wanted, "text", max_chars).strip()
    if not wanted:
        raise InvalidInput("text must not be blank: leave it out to list all jobs", field="text")
    keys = {int(key) for (key,) in read("jobs_of_name", text=wanted, namespace=namespace, limit=MAX_FOUND)}
    start = wanted.lower().replace("-", "")
    if _ID_START.fullmatch(start):
        low, high = (str(UUID(start.ljust(32, digit))) for digit in "0f")
        keys |= {
            int(key) for (key,) in read("jobs_of_id_range", low=low, high=high, namespace=namespace, limit=MAX_FOUND)
        }
    if keys:
        return keys, []
    return set(), [int(key) for (key,) in read("kinds_with_text", text=wanted, namespace=namespace, limit=MAX_FOUND)]
