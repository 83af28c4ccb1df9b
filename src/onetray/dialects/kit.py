"""What dialects are made of: import it, write the routes, the errors and the map of states. See docs/dialects.md.

Owns what all dialects do alike. A dialect uses `services.engine`, whose answers are redacted, and commands; it has no
lifecycle logic and no access to the store.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Mapping
from contextlib import suppress
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, model_validator

from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.lifecycle import FLOW
from onetray.domain.listing import JobStatus
from onetray.domain.state_table import StateTable
from onetray.engine.api import EngineApi
from onetray.engine.list_scan import WALK_READS as READS
from onetray.engine.list_scan import walk_jobs
from onetray.http.auth.scopes import Operator, Principal, Reader, Submitter, Worker, allow
from onetray.http.dialects import Dialect
from onetray.http.json_answers import Json, iso_time
from onetray.http.native_route import GuardedRoute, returns
from onetray.http.openapi.answers import AnswerShape
from onetray.http.openapi.shapes import schema_like
from onetray.http.params import headers_of_request
from onetray.http.problems import request_id_of
from onetray.http.routes.job_actions import cancel_command
from onetray.http.routes.streams import JOB_STREAM, Cursor, LastEventId, stream_view, streaming
from onetray.http.schemas.sizes import MAX_UNKNOWN
from onetray.http.services import Services, services_of
from onetray.http.streams.job import Changes, JobView, Line, Part, follow
from onetray.http.streams.sse import frame

_TRACEBACK = "Traceback (most recent call last)"
_PATH = re.compile(
    r"""(?P<url>\b(?!file:)[a-z][a-z\d+.-]{0,20}://[^\s'"<>]*)
    |(?<!\w)[a-z]:[\\/][^\s'"<>|;,()]*                                          # C:\Users\ann
    |\\\\[^\s'"<>|;,()]+                                                    # \\server\share
    |(?:(?<=file://)|(?<![\w/<.]))(?:~[\w.-]*|\.{1,2})?(?:/[\w.@+~%-]+)+/?  # /srv/app, ~/.ssh, ./run.sh
    |(?<![\w./-])\w[\w.-]*(?:/[\w.-]+)+\.[a-z]\w{0,7}\b                      # src/app/main.py""",
    re.VERBOSE | re.IGNORECASE,
)


class DialectRoute(GuardedRoute):
    """A route of a dialect. It checks the scope first, then rejects unknown query parameters."""


class ClosedBody(BaseModel):
    """A body, or a part of one, that has no other fields than those declared, and converts no types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _limit_fields(cls, body: Any) -> Any:
        """Rejects thousands of unknown fields at once: one error for each would block the server for seconds."""
        if isinstance(body, dict) and len(body) > MAX_UNKNOWN:
            names = [field.alias or name for name, field in cls.model_fields.items()]
            raise ValueError(f"the body has {len(body):,} fields: send only {', '.join(names)}")
        return body


def answers_with(
    title: str,
    example: Any,
    status: int = 200,
    optional: Container[str] = (),
    *,
    empty: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """Declares a route's response by an example, for its decorator. All fields are required but those of `optional`.

    A null in the example stands for any value. `empty` has the statuses of responses without a body, and their titles.
    """
    declared = returns(AnswerShape(title, schema_like(example, optional), example), status)
    bodiless = {status: {"description": title} for status, title in (empty or {}).items()}
    return {**declared, "responses": declared["responses"] | bodiless}


def find_job(engine: EngineApi, id_: str, namespace: str) -> JobStatus:
    """Read a job's state, without its payload and result. Raises NotFound, also for an id that is none."""
    with suppress(NotFound, InvalidInput):
        return engine.job_status(id_, namespace=namespace)
    raise NotFound(f"there is no job {id_[:50]}")


def labels_of(services: Services, job: JobStatus, namespace: str) -> Mapping[str, str]:
    """A job's labels, also if they are redacted: to decide by, never to show."""
    engine = services.unredacted
    read = engine.flow if job.entity == FLOW.entity else engine.task
    return read(job.id, namespace=namespace).labels


def renamed(problem: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A problem document that names a field as the dialect does: `names` has the dialect's names of engine fields."""
    field = str(problem.get("field"))
    if field not in names:
        return problem
    return {**problem, "field": names[field], "detail": str(problem["detail"]).replace(field, names[field], 1)}


def without_internals(error: Any) -> dict[str, str]:
    """A job's error as a class (`code`) and a message, without stack trace and file paths. URLs stay."""
    facts = error if isinstance(error, dict) else {"message": error}
    message = str(facts.get("message") or "").partition(_TRACEBACK)[0].strip()
    return {"code": str(facts.get("class") or "Error"), "message": without_paths(message)}


def without_paths(message: str) -> str:
    return _PATH.sub(lambda match: match["url"] or "<path>", message)


async def reserve_key(
    services: Services, dialect: str, namespace: str, key: str, body: Any, route: str, ttl_s: float
) -> None:
    """Bind an idempotency key to one body of this dialect in a namespace. Raises KeyReused for another body.

    Check the body first: a rejected request must not use up its key.
    """

    def reserve() -> None:
        text = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
        services.engine.reserve_key(
            f"{dialect} {namespace}", key, route=route, body_hash=hashlib.sha256(text).hexdigest(), ttl_s=ttl_s
        )

    await services.read(reserve)


__all__ = [
    "JOB_STREAM", "READS", "Changes", "ClosedBody", "Cursor", "Dialect", "DialectRoute", "JobView", "Json",
    "LastEventId", "Line", "Operator", "Part", "Principal", "Reader", "Services", "StateTable", "Submitter", "Worker",
    "allow", "answers_with", "cancel_command", "find_job", "follow", "frame", "headers_of_request", "iso_time",
    "labels_of", "renamed", "request_id_of", "reserve_key", "services_of", "stream_view", "streaming", "walk_jobs",
    "without_internals", "without_paths",
]  # fmt: skip
