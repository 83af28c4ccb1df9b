"""What is redacted in the answer of a read: the ways among which each read declares its own (engine/reads.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from onetray.redaction.job_secrets import JobRedaction

Redact = Callable[[JobRedaction, Any, Mapping[str, Any]], Any]
"""Takes the redaction of a database, an answer and the arguments of its question; gives what others may see of it."""


def plain(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """Nothing: the answer holds nothing that a payload could hold."""
    return answer


def by_owner(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """Each value names the job that it belongs to."""
    return redaction.redacted(answer)


def of_task(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """The values belong to the task that was asked for."""
    return redaction.redacted(answer, arguments["task"].lower())


def json_of_task(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """The answer is JSON of the task that was asked for."""
    return None if answer is None else redaction.redacted_json([answer], arguments["task"].lower())[0]


def results_of_stage(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """The answer has a result in each row, of the stage that was asked for."""
    results = redaction.redacted_json([row.result for row in answer], arguments["stage"].lower())
    return [row._replace(result=result) for row, result in zip(answer, results, strict=True)]


def of_details(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """The answer is jobs with their stages and log lines: all of them in one look."""
    parts = [(part, each.job.id) for each in answer for part in (each.job, *each.stages, *each.lines)]
    found = iter(redaction.redacted([part for part, _ in parts], [id_ for _, id_ in parts]))
    return [each.with_parts(found) for each in answer]
