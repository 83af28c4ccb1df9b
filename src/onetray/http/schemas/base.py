"""What all bodies share: how one is read, and the fields that stand in many.

Owns the way from bytes to a checked model. JSON is read by pydantic itself: no NaN in numbers, no lone surrogates, no
endless depth, and nothing is turned into something else on the way.
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
MAX_S = 4_000_000_000


class Strict(BaseModel):
    """A body, or a part of one."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, frozen=True, use_attribute_docstrings=True
    )

    @property
    def sent_fields(self) -> dict[str, Any]:
        """The fields that the caller has sent. The others have their defaults."""
        return {name: getattr(self, name) for name in self.model_fields_set}


def _moment(text: str) -> int:
    try:
        return micros(text)
    except (ValueError, OverflowError) as e:
        raise ValueError(f"no time as ISO 8601 has it, with its zone: {e}"[:200]) from None


def _moment_text(text: str) -> str:
    _moment(text)
    return text


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 5.0 is a whole one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


whole_number = BeforeValidator(_whole)


Id = Annotated[str, Field(pattern=ID, json_schema_extra={"format": "uuid", "example": SOME_ID})]
_TIME = WithJsonSchema({"type": "string", "format": "date-time", "example": "2026-11-16T09:30:00Z"})
Moment = Annotated[str, AfterValidator(_moment), _TIME]
"""A time: text as ISO 8601 outside, microseconds inside."""
MomentText = Annotated[str, AfterValidator(_moment_text), _TIME]
"""The same, left as text: whoever reads the body turns it into a number."""
FIRST = FailFast()
"""Of a list, only the first that is wrong is told: looking at all of them stops the server for seconds."""
MAX_ERRORS = 1_000
"""Past so many, they are counted and not told: pydantic can only give all of them, while nothing else runs."""


def most(limit: str) -> Any:
    """Say in the schema of a text, a list or an object which limit of the engine's it has.

    The engine checks it; of a large body, sizes.py checks it before anything else.
    """
    return Field(json_schema_extra={LIMIT: limit})


Name = Annotated[str, Field(min_length=1), most("name_chars")]
Reason = Annotated[str, Field(min_length=1), most("reason_chars")]
Seconds = Annotated[float, Field(ge=0, le=MAX_S)]
Line = Annotated[str, most("line_chars")]
Trace = Annotated[str, Field(pattern=TRACEPARENT)]
# The limits first: behind the validator they would not be in the schema.
FewerCount = Annotated[int, Field(ge=1, le=1_000), whole_number]


async def read_model(request: Request, model: type[T] | TypeAdapter[T]) -> T:
    """The body as a model. None at all counts as an empty one."""
    raw = await request.body() or b"{}"
    adapter = model if isinstance(model, TypeAdapter) else _adapter(model)
    if len(raw) > LARGE:
        await asyncio.to_thread(_sizes(adapter).check, raw, request.app.state.services.engine.config.limits)
    try:
        return adapter.validate_json(raw)
    except ValidationError as e:
        raise RequestValidationError(_errors(e, isinstance(model, TypeAdapter))) from None


def _errors(error: ValidationError, alone: bool) -> list[Any]:
    if (number := error.error_count()) > MAX_ERRORS:
        message = f"{number:,} things are wrong with it: send less of it to be told which"
        return [{"type": "too_many_errors", "loc": ("body",), "msg": message}]
    wrong = error.errors(include_url=False, include_context=False, include_input=False)
    return [{**w, "loc": ("body", *_untagged(w["loc"], alone))} for w in wrong]


def _untagged(loc: tuple[int | str, ...], alone: bool) -> tuple[int | str, ...]:
    """Where a field stands in what was sent: pydantic names the kind of a job or report as if it were a field."""
    at = 0 if alone else 2 if loc[:1] in (("jobs",), ("reports",)) else len(loc)
    return loc[:at] + loc[at + 1 :]


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}
_SIZES: dict[int, Sizes] = {}
"""By the ids of adapters: these live as long as the program."""


def _sizes(adapter: TypeAdapter[Any]) -> Sizes:
    found = _SIZES.get(id(adapter))
    if found is None:
        found = _SIZES[id(adapter)] = Sizes(adapter.json_schema())
    return found


def _adapter(model: type[T]) -> TypeAdapter[T]:
    found = _ADAPTERS.get(model)
    if found is None:
        found = _ADAPTERS[model] = TypeAdapter(model)
    return found
