"""The building blocks of dialects: import it, write the routes, the errors and the map of states. See docs/dialects.md.

Owns what all dialects do alike. A dialect uses `services.engine`, whose answers are redacted, and commands; it has no
lifecycle logic and no access to the store.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from onetray.domain.commands import ReservedKey
from onetray.domain.errors import InvalidInput, NotFound, OnetrayError
from onetray.domain.lifecycle import FLOW
from onetray.domain.listing import JobStatus
from onetray.domain.state_table import StateTable, read_transitions
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
from onetray.http.schemas.base import ID, TRACEPARENT
from onetray.http.schemas.sizes import MAX_UNKNOWN
from onetray.http.services import Services, services_of
from onetray.http.streams.job import Changes, JobView, Line, Part, follow
from onetray.http.streams.sse import frame

B = TypeVar("B", bound=BaseModel)
S = TypeVar("S")
Id = Annotated[str, Field(pattern=ID)]
"""An id of the engine in a path, a query or a body."""

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


class DialectError(OnetrayError):
    """An error that only the dialect has. Its fact `refusal` is the dialect's code."""

    code, status = "refused", 400


@dataclass(frozen=True)
class Refusal:
    """The code and the message of such an error, with places for facts: `Refusal("{what}_ENDED", "the {what} ended")`.

    The code is in capitals.
    """

    code: str
    message: str

    def __call__(self, **facts: str) -> DialectError:
        return DialectError(self.message.format(**facts), refusal=self.code.format(**facts).upper())


@contextmanager
def instead_of(
    error: type[OnetrayError], refusal: Refusal, **facts: str | Callable[[OnetrayError], str]
) -> Iterator[None]:
    """Raises the dialect's error instead of one of the engine's. A fact may be a function of the engine's error."""
    try:
        yield
    except error as e:
        raise refusal(**{name: fact if isinstance(fact, str) else fact(e) for name, fact in facts.items()}) from None


class Levels(dict[str, int]):
    """The other system's names of priorities, highest first."""

    def name_of(self, priority: int) -> str:
        """The name of a priority. One between two levels, which a native job may have, is that of the lower one."""
        return next((name for name, level in self.items() if priority >= level), list(self)[-1])


class ClosedBody(BaseModel):
    """A body, or a part of one, that has no other fields than those declared, and converts no types.

    If its fields have the engine's names, and the other system's as aliases, `**dict(body)` is the input of a command.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _limit_fields(cls, body: Any) -> Any:
        """Rejects thousands of unknown fields at once: one error for each would block the server for seconds."""
        if isinstance(body, dict) and len(body) > MAX_UNKNOWN:
            names = [field.alias or name for name, field in cls.model_fields.items()]
            raise ValueError(f"the body has {len(body):,} fields: send only {', '.join(names)}")
        return body


class TracedBody(ClosedBody):
    """A body that has a W3C trace context, as commands take it."""

    trace: str | None = Field(None, alias="traceparent", pattern=TRACEPARENT)
    tracestate: str | None = Field(None, max_length=512)


class SetStatus(ClosedBody, Generic[S]):
    """A body that sets a status: `SetStatus[Literal["open", "closed"]]`."""

    status: S


Bodies = Annotated[list[B], FailFast(), Field(min_length=1)]
"""A list of bodies, at least one. Its first error is the only one."""


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


def traceparent_of(id_: str) -> str:
    """A W3C trace parent made of an id, always the same: for systems whose jobs all have one."""
    hex_ = id_.replace("-", "")
    return f"00-{hex_}-{hex_[16:]}-01"


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
        new = reserved_key(dialect, namespace, key, body, route, ttl_s)
        services.engine.reserve_key(new.owner, key, route=route, body_hash=new.body_hash, ttl_s=ttl_s)

    await services.read(reserve)


def reserved_key(dialect: str, namespace: str, key: str, body: Any, route: str, ttl_s: float) -> ReservedKey:
    """For a submit that binds its idempotency key to one body of this dialect, in its own transaction."""
    text = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return ReservedKey(f"{dialect} {namespace}", key, route, hashlib.sha256(text).hexdigest(), ttl_s)


__all__ = [
    "JOB_STREAM", "READS", "Bodies", "Changes", "ClosedBody", "Cursor", "Dialect", "DialectError", "DialectRoute", "Id",
    "JobView", "Json", "LastEventId", "Levels", "Line", "Operator", "Part", "Principal", "Reader", "Refusal",
    "Services", "SetStatus", "StateTable", "Submitter", "TracedBody", "Worker", "allow", "answers_with",
    "cancel_command", "find_job", "follow", "frame", "headers_of_request", "instead_of", "iso_time", "labels_of",
    "read_transitions", "renamed", "request_id_of", "reserve_key", "reserved_key", "services_of", "stream_view",
    "streaming", "traceparent_of", "walk_jobs", "without_internals", "without_paths",
]  # fmt: skip
