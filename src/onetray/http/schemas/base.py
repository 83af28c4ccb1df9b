"""How a request body is parsed, and the field types that bodies share.

Pydantic parses the JSON, strictly: no NaN, no lone surrogates, no unlimited depth, no conversion between types.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)

from onetray.http.json_answers import micros
from onetray.http.schemas.sizes import LARGE, LIMIT, Sizes

T = TypeVar("T")

ID = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
SOME_ID = "019a8c3e-5b1f-7c20-9a51-3f4e8d2b6a70"
TRACEPARENT = r"^[\da-f]{2}-[\da-f]{32}-[\da-f]{16}-[\da-f]{2}$"
ALIAS = r"^[^\x00-\x1f\x7f-\x9f]+$"
"""No control characters."""
MAX_S = 4_000_000_000


class Strict(BaseModel):
    """A body, or a part of one."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, frozen=True, use_attribute_docstrings=True
    )

    @property
    def sent_fields(self) -> dict[str, Any]:
        """The fields that the client sent; the others have their defaults."""
        return {name: getattr(self, name) for name in self.model_fields_set}


def _moment(text: str) -> int:
    try:
        return micros(text)
    except (ValueError, OverflowError) as e:
        raise ValueError(f"not an ISO 8601 time with a time zone: {e}"[:200]) from None


def _moment_text(text: str) -> str:
    _moment(text)
    return text


def _whole(value: Any) -> Any:
    """JSON has one number type: 5.0 is an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


whole_number = BeforeValidator(_whole)


Id = Annotated[str, Field(pattern=ID, json_schema_extra={"format": "uuid", "example": SOME_ID})]
_TIME = WithJsonSchema({"type": "string", "format": "date-time", "example": "2026-11-16T09:30:00Z"})
Moment = Annotated[str, AfterValidator(_moment), _TIME]
"""An ISO 8601 time, converted to microseconds."""
MomentText = Annotated[str, AfterValidator(_moment_text), _TIME]
"""An ISO 8601 time that stays text: the command codec converts it."""
FAIL_FAST = FailFast()
"""Report only the first invalid item of a list: checking all of them would block the server for seconds."""
MAX_ERRORS = 1_000
"""Above this number, errors are only counted: listing them would block the server."""


def limited_by(limit: str) -> Any:
    """Name, in the schema of a text, a list or an object, the engine's limit for it.

    The engine checks it; for a large body, sizes.py checks it first.
    """
    return Field(json_schema_extra={LIMIT: limit})


Name = Annotated[str, Field(min_length=1), limited_by("name_chars")]
Reason = Annotated[str, Field(min_length=1), limited_by("reason_chars")]
AliasText = Annotated[str, Field(min_length=1, pattern=ALIAS), limited_by("name_chars")]
Seconds = Annotated[float, Field(ge=0, le=MAX_S)]
Line = Annotated[str, limited_by("line_chars")]
Trace = Annotated[str, Field(pattern=TRACEPARENT)]
# The limits first: after the validator they would not be in the schema.
PageSize = Annotated[int, Field(ge=1, le=1_000), whole_number]


async def read_model(request: Request, model: type[T] | TypeAdapter[T]) -> T:
    """Parse and validate the body. An empty body counts as `{}`."""
    raw = await request.body() or b"{}"
    adapter = model if isinstance(model, TypeAdapter) else adapter_of(model)
    if len(raw) > LARGE:
        await asyncio.to_thread(_sizes(adapter).check, raw, request.app.state.services.engine.config.limits)
    try:
        return adapter.validate_json(raw)
    except ValidationError as e:
        raise RequestValidationError(_errors(e, isinstance(model, TypeAdapter))) from None


def _errors(error: ValidationError, is_union: bool) -> list[Any]:
    if (number := error.error_count()) > MAX_ERRORS:
        message = f"the body has {number:,} errors: send a smaller part of it to see them"
        return [{"type": "too_many_errors", "loc": ("body",), "msg": message}]
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    return [{**e, "loc": ("body", *_untagged(e["loc"], is_union))} for e in errors]


def _untagged(loc: tuple[int | str, ...], is_union: bool) -> tuple[int | str, ...]:
    """The path of a field in the body, without the union tag that pydantic inserts for a job or a report."""
    at = 0 if is_union else 2 if loc[:1] in (("jobs",), ("reports",)) else len(loc)
    return loc[:at] + loc[at + 1 :]


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}
_SIZES: dict[int, Sizes] = {}
"""By id of the adapter: adapters are never freed."""


def _sizes(adapter: TypeAdapter[Any]) -> Sizes:
    sizes = _SIZES.get(id(adapter))
    if sizes is None:
        sizes = _SIZES[id(adapter)] = Sizes(adapter.json_schema())
    return sizes


def adapter_of(model: type[T]) -> TypeAdapter[T]:
    adapter = _ADAPTERS.get(model)
    if adapter is None:
        adapter = _ADAPTERS[model] = TypeAdapter(model)
    return adapter
