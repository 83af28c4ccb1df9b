"""Every route of an app, and a request to each: made from what the route itself says, so that none is left out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_origin

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_ID = re.compile(r"[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}", re.I)
_FRESH = re.compile(r'"(?:reference|requestId|request_id)":"[^"]*"')


@dataclass(frozen=True)
class Way:
    """One method of one route."""

    method: str
    path: str
    scopes: frozenset[str]
    """Any of these will do. Empty: it names none."""
    body: Any
    """An example of what it takes; None when it shows none."""
    waits: bool
    endless: bool

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def parameters(self) -> list[str]:
        return _PARAMETER.findall(self.path)

    def at(self, value: str) -> str:
        """The path with a value for every parameter. It never waits."""
        return _PARAMETER.sub(value, self.path) + ("?wait_s=0" if self.waits else "")

    def request(self, value: str = "0", **changes: Any) -> dict[str, Any]:
        """What to hand to a client. Ids in the body become the value."""
        body = self.body if self.body is not None else {}
        text = _ID.sub(value, json.dumps(body)) if _ID.fullmatch(value) else json.dumps(body)
        sent = json.loads(text)
        if isinstance(sent, dict):
            sent |= {"wait_s": 0} if "wait_s" in sent else {}
            sent |= changes
        return {
            "method": self.method,
            "url": self.at(value),
            **({} if self.method in ("GET", "HEAD") else {"json": sent}),
        }


def ways(app: FastAPI) -> list[Way]:
    """All of them, however they were added."""
    return sorted(_ways(app), key=str)


def _ways(app: FastAPI) -> Iterator[Way]:
    for route in iter_route_contexts(app.routes):
        found = getattr(route, "dependant", None)
        calls = [d.call for d in found.dependencies] if found is not None else []
        scopes = frozenset(s for call in calls for s in getattr(call, "scopes", ()))
        waits = found is not None and any(p.alias == "wait_s" for p in found.query_params)
        kind = getattr(getattr(route, "response_class", None), "media_type", None)
        for method in route.methods or {"GET"}:
            endless = kind == "text/event-stream"
            yield Way(method, str(route.path), scopes, _example(route), waits, endless)


def _example(route: Any) -> Any:
    extra = getattr(route, "openapi_extra", None) or {}
    content = extra.get("requestBody", {}).get("content", {}).get("application/json", {})
    shown = [e.get("value") for e in content.get("examples", {}).values()]
    return next(iter(shown), None) or _declared(getattr(route, "dependant", None))


def _declared(dependant: Any) -> Any:
    """An example of the body that a route of a dialect declares: each field says one of its own."""
    for body in dependant.body_params if dependant is not None else ():
        fields = getattr(body.field_info.annotation, "model_fields", None)
        # Any object, or a list.
        if fields is None:
            return [] if get_origin(body.field_info.annotation) is list else {}
        return {name: field.examples[0] for name, field in fields.items() if field.examples}
    return None


def without_what_is_fresh(text: str, asked: str) -> str:
    """An answer without the value that was asked for, and without the ids that are new in every answer."""
    return _FRESH.sub('"fresh":""', _ID.sub("VALUE", text.replace(asked, "VALUE")))


def without_key(value: Any, key: str) -> Any:
    """A body with one field left out, wherever it stands."""
    if isinstance(value, dict):
        return {k: without_key(v, key) for k, v in value.items() if k != key}
    return [without_key(v, key) for v in value] if isinstance(value, list) else value
