"""How to redact the answer of a read: each read declares one of these functions (engine/reads.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from onetray.domain.redactor import HIDDEN
from onetray.domain.schedule import REFUSED, spec_of
from onetray.redaction.job_secrets import JobRedaction

Redact = Callable[[JobRedaction, Any, Mapping[str, Any]], Any]
"""Takes an answer and the arguments of the read; returns the redacted answer."""


def plain(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """Redacts nothing: the answer has no content from users."""
    return answer


def by_owner(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """Each value names the job that it belongs to."""
    return redaction.redacted(answer)


def of_page(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """The answer is a page: first its values, each of which names its job."""
    return type(answer)(redaction.redacted(answer[0]), *answer[1:])


def of_preview(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """The answer has dead letters, each of which names its job."""
    return replace(answer, letters=redaction.redacted(answer.letters))


def of_task(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """The values belong to the task that the arguments name."""
    return redaction.redacted(answer, arguments["task"].lower())


def of_flow(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """The values belong to the flow that the arguments name."""
    return redaction.redacted(answer, arguments["flow"].lower())


def errors_of_flow(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """The answer is the errors of the flow that the arguments name, and their number."""
    return answer._replace(errors=of_flow(redaction, answer.errors, arguments))


def json_of_task(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """The answer is JSON of the task that the arguments name."""
    return None if answer is None else redaction.redacted_json([answer], arguments["task"].lower())[0]


def results_of_stage(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """Each row of the answer has a result, of the stage that the arguments name."""
    results = redaction.redacted_json([row.result for row in answer], arguments["stage"].lower())
    return [row._replace(result=result) for row, result in zip(answer, results, strict=True)]


def of_details(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """The answer is jobs with their stages and log lines. Redacts all of them at once."""
    parts = [(part, each.job.id) for each in answer for part in (each.job, *each.stages, *each.lines)]
    redacted = iter(redaction.redacted([part for part, _ in parts], [id_ for _, id_ in parts]))
    return [each.with_parts(redacted) for each in answer]


def of_past(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """The answer is a job as it was, with its stages and tasks. Redacts all of them at once."""
    job, *parts = redaction.redacted([answer.job, *answer.stages, *answer.tasks])
    count = len(answer.stages)
    return replace(
        answer, **{answer.entity: job}, stages=tuple(parts[:count]), tasks=tuple(parts[count:])
    )  # fmt: skip


def of_schedule(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """The answer is a schedule, or a list of them. Hides the whole payload if what it submits has redacted fields."""
    if isinstance(answer, list):
        return [_hide_payload(redaction, schedule) for schedule in answer]
    return _hide_payload(redaction, answer)


def _hide_payload(redaction: JobRedaction, schedule: Any) -> Any:
    if schedule.payload is None or not redaction.redacts(schedule.namespace, schedule.kind, schedule.flow):
        return schedule
    return replace(schedule, payload=HIDDEN)


def of_fires(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """The answer is the fires of the schedule that the arguments name."""
    if all(fire.outcome != REFUSED for fire in answer):
        return answer
    namespace = arguments.get("namespace", "default")
    rows = redaction.store.read("schedule_by_name", schedule=arguments["name"], namespace=namespace)
    is_secret = any(redaction.redacts(namespace, spec.kind, spec.flow) for spec in (spec_of(row.body) for row in rows))
    return [_without_refusal(fire) for fire in answer] if is_secret or not rows else answer


def without_payload(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """The answer is a schedule, for somebody who need not be allowed to read: hides its payload."""
    return answer if answer.payload is None else replace(answer, payload=HIDDEN)


def without_refusal(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """The answer is a fire of a schedule, for somebody who need not be allowed to read: hides why it is refused."""
    return _without_refusal(answer)


def _without_refusal(fire: Any) -> Any:
    """A refusal may quote the payload."""
    return replace(fire, why=HIDDEN) if fire.outcome == REFUSED else fire


def of_explanation(redaction: JobRedaction, answer: Any, arguments: Mapping[str, Any]) -> Any:
    """The answer is a schedule with its fires."""
    shown = _hide_payload(redaction, answer.schedule)
    return replace(answer, schedule=shown, last=of_fires(redaction, answer.last, arguments))
